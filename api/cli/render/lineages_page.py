"""Lineages and their history, from the answers of a service."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced

_TO_THE_MINUTE = 16
_SHORT_HASH = slice(7, 19)


def lineages_page(items: Sequence[Mapping[str, Any]], *, more: bool) -> RenderableType:
    """One line for each lineage."""
    table = _table("lineage", "identity", "revisions", "active", "newest because")
    for item in items:
        active = item["active"]
        is_newest = active is not None and active["revision"] == item["newest"]["revision"]
        table.add_row(
            item["name"],
            item["lineage_id"],
            str(item["num_revisions"]),
            Text("none", "warning")
            if active is None
            else Text(str(active["revision"]), "" if is_newest else "warning"),
            item["newest"]["why"],
        )
    return Group(table, Text("and more; choose with --name", "quiet")) if more else table


def history_page(
    lineage: Mapping[str, Any], revisions: Sequence[Mapping[str, Any]], activations: Sequence[Mapping[str, Any]]
) -> RenderableType:
    """Revisions and activations of one lineage, newest first."""
    title = Text.assemble((lineage["name"], "headline"), ("  " + lineage["lineage_id"], "quiet"))
    active = lineage["active"]["revision"] if lineage["active"] else None
    made = _table("", "revision", "at", "plan", "why")
    for row in revisions:
        mark = Text("active", "good") if row["revision"] == active else Text("")
        made.add_row(mark, str(row["revision"]), _minute(row["created_at"]), row["plan"][_SHORT_HASH], row["why"])
    moved = _table("at", "from", "to", "by", "why")
    for row in activations:
        before = row["previous_revision"]
        moved.add_row(
            _minute(row["at"]),
            "none" if before is None else str(before),
            str(row["revision"]),
            row["activated_by"],
            row["why"],
        )
    parts = [Group(Text("Revisions", style="title"), indented(made))]
    if activations:
        parts.append(Group(Text("Activations", style="title"), indented(moved)))
    return spaced((title, *parts))


def inputs_part(inputs: Mapping[str, str]) -> RenderableType:
    """What was asked differently."""
    lines = [indented(Text.assemble(("- ", "quiet"), words)) for words in inputs.values()]
    return spaced((Group(Text("What was asked differently", style="title"), *lines),)) if lines else Text("")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="quiet", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("revision", "at", "plan", "identity"))
    return table


def _minute(at: str) -> str:
    return at[:_TO_THE_MINUTE].replace("T", " ")
