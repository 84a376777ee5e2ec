"""Regenerations and revisions of clusters, from the answers of a service."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced

_TO_THE_MINUTE = 16
_STYLES = {"better": "good", "unchanged": "quiet", "worse": "warning", "infeasible": "error", "failed": "error"}


def preview_page(found: Mapping[str, Any]) -> RenderableType:
    """What a dry run found."""
    changes = [indented(Text(change)) for change in found["changes"]]
    table = _table("lineage", "revision", "plan")
    for item in found["items"]:
        table.add_row(item["lineage"] or "", str(item["revision"] or ""), item["plan"])
    plans = "1 plan" if found["num_items"] == 1 else f"{found['num_items']} plans"
    title = Text(f"{plans} would be made again; nothing was changed", "headline")
    return spaced((title, Group(*changes), table if found["items"] else None))


def regeneration_page(found: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Progress, then each plan."""
    title = Text.assemble(
        (found["regeneration_id"], "headline"),
        f"  {found['cluster']}, revision {found['cluster_revision']}: {found['state']}",
    )
    table = _table("item", "lineage", "verdict", "change", "review", "because")
    for item in items:
        change = "" if item["change"] is None else f"{item['change']:+.1%}"
        verdict = item["verdict"] or item["state"]
        table.add_row(
            str(item["number"]),
            item["lineage"] or "none",
            Text(verdict, _STYLES.get(verdict, "")),
            change,
            Text(item["review"], "warning" if item["review"] == "waiting" else ""),
            "; ".join(item["reasons"][:3]),
        )
    return spaced((title, indented(_progress(found)), table if items else None))


def regenerations_page(items: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line for each."""
    table = _table("regeneration", "cluster", "at", "state", "progress")
    for item in items:
        table.add_row(
            item["regeneration_id"],
            f"{item['cluster']}, revision {item['cluster_revision']}",
            item["created_at"][:_TO_THE_MINUTE].replace("T", " "),
            item["state"],
            _progress(item),
        )
    return table


def cluster_page(items: Sequence[Mapping[str, Any]]) -> RenderableType:
    """What a cluster was, newest first."""
    table = _table("revision", "at", "changes", "why")
    for item in items:
        table.add_row(
            str(item["revision"]),
            item["created_at"][:_TO_THE_MINUTE].replace("T", " "),
            "\n".join(item["changes"]),
            item["why"],
        )
    return table


def _progress(found: Mapping[str, Any]) -> Text:
    done = f"{found['items']['done']} of {found['num_items']} plans done"
    told = {**found["verdicts"], "waiting for a person": found["reviews"]["waiting"]}
    return Text(", ".join([done, *(f"{number} {name}" for name, number in told.items() if number)]))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="quiet", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column, overflow="fold", no_wrap=column in ("regeneration", "item", "at", "review", "verdict")
        )
    return table
