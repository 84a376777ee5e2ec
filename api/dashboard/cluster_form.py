"""The form that changes a cluster, as the document that the API takes."""

import json
import math
from typing import Any

from planner.schema.errors import InvalidDocument

_MOST = 1e18
"""What is more, or no number, is none that anybody means; JSON and integers have no place for it."""


def revision_of(form: dict[str, str], *, dry_run: bool = False) -> bytes:
    """JSON of a `NewClusterRevision` from fields of the form.

    Raises:
        InvalidDocument: a field is no number, or no change is chosen.
    """
    document: dict[str, Any] = {
        "changes": [_change(form)],
        "scope": form.get("scope") or "all",
        "policy": {"activate_within_percent": _number(form, "within_percent", float, optional=True)},
        "why": form.get("why", "").strip(),
        "dry_run": dry_run,
    }
    if form.get("base"):
        document["base"] = form["base"]
    return json.dumps(document).encode()


def _change(form: dict[str, str]) -> dict[str, Any]:
    kind = form.get("change", "")
    group = {"group": _number(form, "group", int, optional=True) or 0}
    match kind:
        case "nodes_lost" | "nodes_added":
            return {"change": kind, **group, "num_nodes": _number(form, "num_nodes", int)}
        case "memory":
            gib = _number(form, "memory_gib", float)
            return {"change": kind, **group, "device_memory_bytes": round((gib or 0) * 2**30)}
        case "link_degraded":
            share = (_number(form, "share_percent", float) or 0) / 100
            return {"change": kind, **group, "link": form.get("link", ""), "share": share}
        case "link":
            return {"change": kind, **group, "link": form.get("link", ""), "to": form.get("to_link", "")}
        case "device":
            return {"change": kind, **group, "device": form.get("device", "")}
    raise _invalid("change", "choose what changes")


def _number(
    form: dict[str, str], name: str, kind: type[int] | type[float], *, optional: bool = False
) -> float | None:
    text = form.get(name, "").strip()
    if not text and optional:
        return None
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _MOST:
        raise _invalid(name, f"has to be a number, not {text[:40]!r}")
    return number


def _invalid(path: str, message: str) -> InvalidDocument:
    return InvalidDocument(
        f"the form cannot be used: {path.replace('_', ' ')}: {message}", problems=((path, message),)
    )
