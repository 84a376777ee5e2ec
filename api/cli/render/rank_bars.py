"""A buffer drawn over its ranks: one bar for each run of ranks that hold the same."""

import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from api.cli.render.console import has_color
from api.cli.render.stacked_bar import cells_of
from api.quantities import count
from planner.layout.planned import PlannedBuffer
from planner.program.pieces import pieces
from planner.schema import Parameter
from solver.layout.problem import Tensor

MAX_BARS = 12
MAX_LEGEND = 16
_MAX_WIDTH = 64
_EMPTY = "."
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta", "bright_green")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_Content = tuple[tuple[str, int], ...]
"""Families that a rank holds, in order, with their elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Parameters of one name but for numbers: experts, mostly."""

    name: str
    letter: str
    style: str
    num_parameters: int
    shape: tuple[int, ...]
    tensor: Tensor
    is_owned: bool
    """Its optimizer needs it whole, and an owner has it so for the update."""
    first_rank: int
    last_rank: int


class RankBars:
    """The drawing with its legend."""

    def __init__(self, modules: Sequence[str], buffer: PlannedBuffer) -> None:
        self._modules = modules
        self._buffer = buffer
        self._families = self._collect()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styled = has_color(console)
        bars = list(self._bars())
        labels = [_ranks(first, last) for first, last, _ in bars]
        column = max(map(len, labels))
        width = max(8, min(_MAX_WIDTH, options.max_width - column - 4))
        for label, (_, _, content) in zip(labels[:MAX_BARS], bars, strict=False):
            yield Text.assemble(
                (f"{label:<{column}} ", "quiet"), "|", self._bar(content, width, styled=styled), "|"
            )
        if len(bars) > MAX_BARS:
            yield Text(f"... {count(len(bars) - MAX_BARS, 'more run')} of ranks that hold the same", style="quiet")
        yield from self._legend(styled=styled)

    def _collect(self) -> dict[str, Family]:
        members: dict[str, list[tuple[str, Parameter]]] = {}
        for name, parameter in self._buffer.parameters:
            members.setdefault(self._family_name(name), []).append((name, parameter))
        ranks: dict[str, list[int]] = {}
        for piece in pieces(self._buffer.layout):
            ranks.setdefault(self._family_name(piece.parameter), []).append(piece.rank)
        tensors = {tensor.name: tensor for tensor in self._buffer.solved.problem.tensors}
        return {
            family: Family(
                name=family,
                letter=_LETTERS[number % len(_LETTERS)],
                style=_STYLES[number % len(_STYLES)],
                num_parameters=len(named),
                shape=named[0][1].shape,
                tensor=tensors[named[0][0]],
                is_owned=named[0][0] in self._buffer.owned,
                first_rank=min(ranks[family]),
                last_rank=max(ranks[family]),
            )
            for number, (family, named) in enumerate(members.items())
        }

    def _family_name(self, parameter: str) -> str:
        inner = next((m for m in self._modules if m and parameter.startswith(f"{m}.")), "")
        return _NUMBER.sub("*", f".{parameter.removeprefix(f'{inner}.')}")[1:]

    def _bars(self) -> Iterator[tuple[int, int, _Content]]:
        """First rank, last rank and what each rank between them holds."""
        contents: list[list[tuple[str, int]]] = [[] for _ in range(self._buffer.solved.problem.num_ranks)]
        for piece in pieces(self._buffer.layout):
            held = contents[piece.rank]
            family = self._family_name(piece.parameter)
            if held and held[-1][0] == family:
                held[-1] = (family, held[-1][1] + piece.num_elements)
            else:
                held.append((family, piece.num_elements))
        for content, run in groupby(enumerate(map(tuple, contents)), key=lambda pair: pair[1]):
            numbers = [number for number, _ in run]
            yield numbers[0], numbers[-1], content

    def _bar(self, content: _Content, width: int, *, styled: bool) -> Text:
        """Gaps between parameters are drawn at the end, with the rest of the padding."""
        cells = cells_of([elements for _, elements in content], self._buffer.layout.shard_elements, width)
        text = Text()
        for (name, _), number in zip(content, cells, strict=True):
            family = self._families[name]
            text.append(family.letter * number, style=family.style if styled else "none")
        text.append(_EMPTY * (width - sum(cells)), style="quiet")
        return text

    def _legend(self, *, styled: bool) -> Iterator[Text]:
        shown = list(self._families.values())
        names = max(len(family.name) for family in shown[:MAX_LEGEND])
        for family in shown[:MAX_LEGEND]:
            shape = " x ".join(map(str, family.shape)) or "scalar"
            times = f"{family.num_parameters} of " if family.num_parameters > 1 else ""
            yield Text.assemble(
                (family.letter, family.style if styled else "bold"),
                f" {family.name:<{names}}  {times}{shape}, {_atom_words(family)}, ",
                (_ranks(family.first_rank, family.last_rank), "quiet"),
            )
        if len(shown) > MAX_LEGEND:
            yield Text(f"... {count(len(shown) - MAX_LEGEND, 'more name')}", style="quiet")


def _ranks(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _atom_words(family: Family) -> str:
    """What stays together, in rows where it is rows."""
    tensor, columns = family.tensor, family.shape[-1] if len(family.shape) > 1 else 0
    if family.is_owned:
        return "whole on its owner"
    if tensor.is_whole:
        return "whole"
    if tensor.atom_elements == 1:
        return "any cut"
    if columns and tensor.atom_elements % columns == 0:
        return f"by {count(tensor.atom_elements // columns, 'row')}"
    return f"by {count(tensor.atom_elements, 'element')}"
