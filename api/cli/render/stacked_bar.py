"""One stacked bar with a legend: colours on a terminal that has them, letters elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from api.cli.render.console import has_color

_BLOCK = "\u2588"
_FREE = "\u2591"
_MARK = "\u2502"
_KEY = "\u25a0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A share of the bar."""

    name: str
    value: int
    label: str
    """The value in words, for the legend."""
    style: str
    letter: str
    """One ASCII letter that stands for it where there are no colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """Segments from left to right on a scale from 0 to `scale`, with a mark at `limit`."""

    segments: Sequence[Segment]
    scale: int
    limit: int | None = None
    limit_label: str = ""
    indent: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, min(options.max_width, 110) - self.indent - 2)
        colored = has_color(console)
        ascii_only = options.ascii_only
        shown = [segment for segment in self.segments if segment.value > 0]
        yield self._bar(shown, width, colored=colored, ascii_only=ascii_only)
        if self.limit is not None and self.limit_label:
            yield self._limit_line(width, ascii_only=ascii_only)
        yield from self._legend(shown, width, colored=colored, ascii_only=ascii_only)

    def _bar(self, shown: Sequence[Segment], width: int, *, colored: bool, ascii_only: bool) -> Text:
        text = Text(" " * self.indent)
        cells = cells_of([segment.value for segment in shown], self.scale, width)
        limit = self._limit_cell(width)
        block = _BLOCK if colored and not ascii_only else ""
        for segment, number in zip(shown, cells, strict=True):
            text.append((block or segment.letter) * number, style=segment.style if colored else "none")
        free = width - sum(cells)
        text.append(("." if ascii_only or not colored else _FREE) * free, style="quiet")
        if limit is not None:
            mark = "|" if ascii_only else _MARK
            text = Text.assemble(text[: self.indent + limit], (mark, "bold"), text[self.indent + limit :])
        return text

    def _limit_line(self, width: int, *, ascii_only: bool) -> Text:
        limit = self._limit_cell(width) or 0
        label = self.limit_label
        position = self.indent + limit
        start = max(self.indent, min(position - cell_len(label) - 1, self.indent + width - cell_len(label)))
        if start + cell_len(label) < position:
            return Text.assemble(" " * (position - cell_len(label) - 1), (label, "quiet"), " ", ("^", "bold"))
        return Text.assemble(" " * position, ("^", "bold"), " ", (label, "quiet"))

    def _limit_cell(self, width: int) -> int | None:
        return None if self.limit is None else round(self.limit / max(1, self.scale) * width)

    def _legend(self, shown: Sequence[Segment], width: int, *, colored: bool, ascii_only: bool) -> list[Text]:
        if not shown:
            return []
        entries = []
        for segment in shown:
            key = Text(
                _KEY if colored and not ascii_only else segment.letter, style=segment.style if colored else "bold"
            )
            entries.append((key, segment.name, segment.label))
        names = max(cell_len(name) for _, name, _ in entries)
        labels = max(cell_len(label) for _, _, label in entries)
        column = names + labels + 7
        per_line = max(1, min(len(entries), (width + 3) // column))
        num_lines = -(-len(entries) // per_line)
        lines = []
        for row in range(num_lines):
            line = Text(" " * self.indent)
            for key, name, label in entries[row::num_lines]:
                line.append(key)
                line.append(f" {name:<{names}}  ")
                line.append(f"{label:>{labels}}", style="bold")
                line.append("   ")
            line.rstrip()
            lines.append(line)
        return lines


def cells_of(values: Sequence[int], scale: int, width: int) -> list[int]:
    """Cells of each value: largest remainders, so that the sum is that of the whole; none above the width.

    >>> cells_of([50, 25, 25], 100, 10), cells_of([1, 1, 1], 3, 10)
    ([5, 3, 2], [4, 3, 3])
    """
    if scale <= 0:
        return [0 for _ in values]
    exact = [value * width / scale for value in values]
    cells = [int(value) for value in exact]
    total = min(width, round(sum(exact)))
    order = sorted(range(len(values)), key=lambda index: (cells[index] - exact[index], index))
    for index in order[: max(0, total - sum(cells))]:
        cells[index] += 1
    return cells
