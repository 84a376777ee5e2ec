"""Which inputs of two plans differ, and how: the reason why there are two."""

import json
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy.orm import Session

from planner.schema import PlanBody, Workload
from profiles_db import documents, requests
from profiles_db.tables import DocumentKind, PlanRow

MAX_WORDS = 8
"""Fields of one document that are named; the rest is counted."""
_LONGEST_VALUE = 60
_SHORT_HASH = slice(7, 19)
_NOT_KNOBS = ("workload", "warm_start", "schema_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChange:
    """One kind of input that differs."""

    kind: str
    """`model`, `cluster`, `profile`, `workload`, `knobs` (fixed choices, limits, objective, effort) or
    `planner_version`."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a plan was made from, and by what."""

    request_hash: str
    planner_version: str

    @classmethod
    def of_row(cls, row: PlanRow) -> Self:
        """Of a row."""
        return cls(request_hash=row.request_hash, planner_version=row.planner_version)

    @classmethod
    def of_body(cls, body: PlanBody) -> Self:
        """Of a plan that may have no row, being provisional."""
        return cls(request_hash=body.inputs.request, planner_version=body.planner_version)


def input_changes(session: Session, tenant: str, before: Origin, after: Origin) -> list[InputChange]:
    """What differs between the inputs of two plans of one tenant."""
    old, old_fields = requests.fields(session, tenant, before.request_hash)
    new, new_fields = requests.fields(session, tenant, after.request_hash)
    found = []
    if old.model_hash != new.model_hash:
        found.append(("model", f"described anew: {_arrow(old.model_hash, new.model_hash)}"))
    if old.cluster_hash != new.cluster_hash:
        clusters = (_cluster(session, tenant, row.cluster_hash) for row in (old, new))
        found.append(("cluster", in_words(document_changes(*clusters))))
    if old.profile_hash != new.profile_hash:
        found.append(("profile", _arrow(old.profile_hash, new.profile_hash)))
    for kind, values in (
        ("workload", map(_workload, (old_fields, new_fields))),
        ("knobs", map(_knobs, (old_fields, new_fields))),
    ):
        if changes := document_changes(*values):
            found.append((kind, in_words(changes)))
    if before.planner_version != after.planner_version:
        found.append(("planner_version", f"{before.planner_version} -> {after.planner_version}"))
    return [InputChange(kind=kind, words=f"{kind.replace('_', ' ')}: {words}") for kind, words in found]


def document_changes(before: Any, after: Any, path: str = "") -> list[str]:  # noqa: ANN401 - JSON of any shape
    """Fields that differ between two JSON values, as `path: old -> new`."""
    if before == after:
        return []
    match before, after:
        case dict(), dict():
            names = dict.fromkeys([*before, *after])
            pairs = [(f"{path}.{name}" if path else name, before.get(name), after.get(name)) for name in names]
        case list(), list() if len(before) == len(after):
            pairs = [
                (f"{path}[{index}]", old, new) for index, (old, new) in enumerate(zip(before, after, strict=True))
            ]
        case _:
            return [f"{path}: {_pair(path, before, after)}"]
    return [change for place, old, new in pairs for change in document_changes(old, new, place)]


def in_words(changes: list[str]) -> str:
    """The first changes, and how many more there are."""
    more = len(changes) - MAX_WORDS
    return ", ".join([*changes[:MAX_WORDS], *([f"and {more} more"] if more > 0 else [])])


def _cluster(session: Session, tenant: str, content_hash: str) -> Any:  # noqa: ANN401 - JSON
    body = documents.get_bytes(session, tenant, DocumentKind.CLUSTER, content_hash)
    assert body is not None, "foreign keys keep the documents of a request"
    return json.loads(body)


def _workload(fields: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    return Workload.from_object(fields["workload"]).model_dump(mode="json")


def _knobs(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _NOT_KNOBS}


def _arrow(before: str | None, after: str | None) -> str:
    return " -> ".join("none" if digest is None else digest[_SHORT_HASH] for digest in (before, after))


def _pair(path: str, before: Any, after: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Sizes and rates in units for people, unless they would look equal."""
    texts = [_measure(path, value) or _value(value) for value in (before, after)]
    if texts[0] == texts[1]:
        texts = [_value(value) for value in (before, after)]
    return " -> ".join(texts)


def _measure(path: str, value: Any) -> str | None:  # noqa: ANN401 - JSON of any shape
    if type(value) is not int:
        return None
    if path.endswith("bytes_per_s"):
        return f"{value / 1e9:.6g} GB/s"
    if ".flops_per_s." in path or path.endswith("vector_flops_per_s"):
        return f"{value / 1e12:.6g} TFLOP/s"
    if path.endswith("_bytes") and value >= 2**20:
        return f"{value / 2**30:.6g} GiB"
    return None


def _value(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    text = "default" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
