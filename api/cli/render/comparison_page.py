"""What `shardwright dryrun` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.quantities import change, count, size
from planner.schema import Decisions

if TYPE_CHECKING:
    from runtime_client.dryrun.compare import Comparison, MemoryComparison

NUM_SHOWN = 20
"""Differences in words; the rest is counted."""


def comparison_page(
    found: "Comparison", memory: Sequence["MemoryComparison"], decisions: Decisions
) -> RenderableType:
    """Verdict, counts side by side, then the first differences in words."""
    return spaced((_verdict(found, memory, decisions), _table(found, memory), _differences(found)))


def _verdict(found: "Comparison", memory: Sequence["MemoryComparison"], decisions: Decisions) -> Text:
    ranks = count(decisions.mesh.num_ranks, "rank")
    apart = sum(not row.is_close for row in memory)
    if found.equal and not apart:
        return Text.assemble(("equal  ", "good"), f"FSDP2 does on {ranks} what was predicted")
    what = [count(len(found.differences), "difference")] * bool(found.differences)
    what += ["memory is off"] * bool(apart)
    return Text.assemble((f"different  {', '.join(what)}  ", "error"), f"on {ranks}")


def _table(found: "Comparison", memory: Sequence["MemoryComparison"]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="quiet", padding=(0, 2, 0, 0))
    for title in ("", ""):
        table.add_column(title)
    for title in ("predicted", "recorded", ""):
        table.add_column(title, justify="right")
    previous = None
    for tally in found.tallies:
        stream = tally.stream.value if tally.stream is not previous else ""
        previous = tally.stream
        cells = [
            f"{number:,}" + (f"  {size(total)}" if total else "")
            for number, total in zip(tally.num_operations, tally.size_bytes, strict=True)
        ]
        table.add_row(stream, tally.kind.value, *cells, _mark(cells[0] == cells[1]))
    edges = [f"{number:,}" for number in found.num_edges]
    table.add_row("edges", "between streams", *edges, _mark(edges[0] == edges[1]))
    for number, row in enumerate(memory):
        table.add_row(
            "" if number else "memory",
            row.phase,
            size(row.predicted_bytes),
            size(row.recorded_bytes),
            Text(change(row.recorded_bytes, row.predicted_bytes), "" if row.is_close else "error"),
        )
    return table


def _mark(is_same: bool) -> Text:
    return Text("same", "quiet") if is_same else Text("different", "error")


def _differences(found: "Comparison") -> RenderableType | None:
    if found.equal:
        return None
    lines = [f"- {difference}" for difference in found.differences[:NUM_SHOWN]]
    hidden = len(found.differences) - len(lines)
    return indented(Text("\n".join([*lines, f"- and {hidden} more"] if hidden else lines)))
