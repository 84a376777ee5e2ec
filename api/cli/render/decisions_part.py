"""The decisions of a plan as a table of units with equal ones folded."""

from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented
from api.folding import Strip, UnitRow, UnitTraits, decision_strips, fold_units
from api.plan_words import global_words
from api.quantities import quantity
from planner.schema import Decisions

_LEAST_BLOCKS_FOR_A_STRIP = 4
_ROOMY = 72
"""Width from which every column has room."""
_Column = tuple[str, Callable[[UnitTraits], str], str]
"""Heading, value, and the value that is ordinary."""


def decisions_part(decisions: Decisions) -> RenderableType:
    """Mesh and batches in a line, then one row per fold, then strips where blocks differ."""
    rows = fold_units(decisions)
    parts: list[RenderableType] = [
        Text("Decisions", style="title"),
        indented(Text(global_words(decisions))),
        indented(UnitTable(rows)),
    ]
    strips = [strip for strip in decision_strips(decisions) if len(strip.marks) >= _LEAST_BLOCKS_FOR_A_STRIP]
    parts += [indented(StripLine(strip)) for strip in strips]
    return Group(*parts)


class UnitTable:
    """One row per fold; columns that say the same default everywhere are left out, first where space is short."""

    def __init__(self, rows: tuple[UnitRow, ...]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        roomy = options.max_width >= _ROOMY
        table = Table(box=None, pad_edge=False, padding=(0, 3 if roomy else 2, 0, 0), header_style="quiet")
        table.add_column("unit", overflow="fold")
        if roomy:
            table.add_column("parameters", justify="right", no_wrap=True)
        columns = self._columns(roomy=roomy)
        for heading, _, _ in columns:
            table.add_column(heading)
        for row in self._rows:
            cells = [Text(row.name), Text(_size(row))] if roomy else [Text(row.name)]
            for _, value, ordinary in columns:
                cells.append(Text(value(row.traits), style="quiet" if value(row.traits) == ordinary else "none"))
            table.add_row(*cells)
        yield table

    def _columns(self, *, roomy: bool) -> list[_Column]:
        always: list[_Column] = [
            ("after forward", lambda traits: traits.reshard, "reshard"),
            ("activations", lambda traits: traits.activations, "keep"),
        ]
        sometimes: list[_Column] = [
            ("prefetch", lambda traits: traits.prefetch, "implicit"),
            ("kept on", lambda traits: traits.tiers, "device"),
            ("mesh", lambda traits: traits.mesh, ""),
            ("layout", lambda traits: traits.layout, "even"),
        ]
        return always + [
            (heading, value, ordinary)
            for heading, value, ordinary in sometimes
            if (heading == "prefetch" and roomy) or any(value(row.traits) != ordinary for row in self._rows)
        ]


class StripLine:
    """A strip as text: one cell per unit, wrapped to the width."""

    def __init__(self, strip: Strip) -> None:
        self._strip = strip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yes, no = ("#", ".") if options.ascii_only else ("\u25a0", "\u00b7")
        head = f"{self._strip.name}  {self._strip.decision:<10}  "
        width = max(8, options.max_width - len(head))
        marks = "".join(yes if mark else no for mark in self._strip.marks)
        for start in range(0, len(marks), width):
            lead = head if start == 0 else " " * len(head)
            yield Text.assemble((lead, "quiet"), (marks[start : start + width], "figure"))


def _size(row: UnitRow) -> str:
    size = quantity(row.num_parameters) if row.num_parameters else "-"
    return f"{row.num_units} x {size}" if row.num_units > 1 else size
