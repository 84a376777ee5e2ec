"""Ragged buffers of a plan over their ranks: what each rank holds, what a cut keeps whole, and the padding."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from planner.block_names import fold_names, template
from planner.layout.atoms import atoms_of_request, granularity, optimizer_atom, table_names
from planner.program.pieces import pieces
from planner.schema import Layout, MatrixOwner, Parameter, PlanRequest
from planner.schema.plan import PlanBody

MAX_BARS = 12
MAX_BUFFERS = 12
_SHADES = 10
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


_Member = tuple[tuple[str, ...], Layout, int]
"""Modules of a unit, one of its buffers, and over how many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A family of parameters on a rank; places are thousandths of the shard."""

    shade: int
    start: float
    width: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Neighbouring ranks that hold the same."""

    ranks: str
    parts: tuple[Part, ...]
    padding_elements: int
    """Of each of these ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Parameters of one name but for numbers."""

    name: str
    shade: int
    num_parameters: int
    shape: str
    num_elements: int
    atom: str
    ranks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPicture:
    """A buffer, or several that are alike."""

    units: str
    num_buffers: int
    dtype: str
    num_ranks: int
    shard_elements: int
    num_elements: int
    padding_elements: int
    bars: tuple[Bar, ...]
    num_more_bars: int
    families: tuple[Family, ...]

    @property
    def padding_share(self) -> float:
        """Padding as a fraction of the parameters."""
        return self.padding_elements / self.num_elements if self.num_elements else 0.0


def buffer_pictures(body: PlanBody, request: PlanRequest) -> tuple[BufferPicture, ...]:
    """Kinds of buffers of a plan, in its order, each once."""
    decisions = body.decisions
    if decisions is None or not decisions.layouts:
        return ()
    by_name = {layout.name: layout for layout in decisions.layouts}
    alike: dict[tuple[object, ...], list[_Member]] = {}
    for unit in decisions.units:
        shard = decisions.mesh_of(unit).shard
        for name in unit.layouts:
            layout = by_name[name]
            places = tuple((template(e.parameter), e.offset_elements, e.num_elements) for e in layout.entries)
            key = (*map(template, unit.modules), layout.dtype, layout.shard_elements, shard, places)
            alike.setdefault(key, []).append((unit.modules, layout, shard))
    painter = _Painter(request, decisions.owners)
    return tuple(painter.picture(members) for members in alike.values())


class _Painter:
    def __init__(self, request: PlanRequest, owners: tuple[MatrixOwner, ...]) -> None:
        self._parameters = dict(request.model.iter_parameters())
        self._workload = request.workload
        self._tables = table_names(request.model)
        self._owned = {owner.parameter for owner in owners}

    def picture(self, members: list[_Member]) -> BufferPicture:
        modules, layout, num_ranks = members[0]
        families = self._families(modules, layout)
        bars = list(self._bars(modules, layout, num_ranks, families))
        width = f" ({len(modules)} per unit)" if len(modules) > 1 else ""
        elements = sum(entry.num_elements for entry in layout.entries)
        return BufferPicture(
            units=fold_names(module for unit, _, _ in members for module in unit) + width,
            num_buffers=len(members),
            dtype=layout.dtype.value,
            num_ranks=num_ranks,
            shard_elements=layout.shard_elements,
            num_elements=elements,
            padding_elements=num_ranks * layout.shard_elements - elements,
            bars=tuple(bars[:MAX_BARS]),
            num_more_bars=max(0, len(bars) - MAX_BARS),
            families=tuple(families.values()),
        )

    def _families(self, modules: tuple[str, ...], layout: Layout) -> dict[str, Family]:
        names: dict[str, list[str]] = {}
        ranks: dict[str, list[int]] = {}
        for entry in layout.entries:
            names.setdefault(_family(modules, entry.parameter), []).append(entry.parameter)
        for piece in pieces(layout):
            ranks.setdefault(_family(modules, piece.parameter), []).append(piece.rank)
        sizes = {entry.parameter: entry.num_elements for entry in layout.entries}
        return {
            family: Family(
                name=family,
                shade=number % _SHADES,
                num_parameters=len(members),
                shape=self._shape(members[0]),
                num_elements=sum(sizes[name] for name in members),
                atom=self._atom(members[0]),
                ranks=_ranks(min(ranks[family]), max(ranks[family])),
            )
            for number, (family, members) in enumerate(names.items())
        }

    def _shape(self, name: str) -> str:
        parameter = self._parameters.get(name)
        return "" if parameter is None else " x ".join(map(str, parameter.shape))

    def _atom(self, name: str) -> str:
        """What a boundary of shards does not cut in a parameter, in words."""
        parameter = self._parameters.get(name)
        if parameter is None:
            return ""
        if name in self._owned:
            return "whole on its owner for the update"
        return _atom_words(self._atom_elements(name, parameter), parameter)

    def _atom_elements(self, name: str, parameter: Parameter) -> int:
        is_table = name in self._tables
        own, *further = atoms_of_request(self._workload, name, parameter, is_table=is_table)
        asked = optimizer_atom(self._workload, name, parameter, is_table=is_table)
        return granularity(parameter, own, *further, asked).step_elements

    def _bars(
        self, modules: tuple[str, ...], layout: Layout, num_ranks: int, families: dict[str, Family]
    ) -> Iterator[Bar]:
        held: list[list[tuple[str, int]]] = [[] for _ in range(num_ranks)]
        for piece in pieces(layout):
            family, own = _family(modules, piece.parameter), held[piece.rank]
            if own and own[-1][0] == family:
                own[-1] = (family, own[-1][1] + piece.num_elements)
            else:
                own.append((family, piece.num_elements))
        for content, run in groupby(enumerate(map(tuple, held)), key=lambda pair: pair[1]):
            numbers = [number for number, _ in run]
            yield _bar(numbers[0], numbers[-1], content, layout.shard_elements, families)


def _bar(
    first: int, last: int, content: tuple[tuple[str, int], ...], shard: int, families: dict[str, Family]
) -> Bar:
    parts, start = [], 0
    for name, elements in content:
        parts.append(
            Part(
                shade=families[name].shade,
                start=round(1000 * start / shard, 2),
                width=round(1000 * elements / shard, 2),
                words=f"{name}: {elements:,} elements",
            )
        )
        start += elements
    return Bar(ranks=_ranks(first, last), parts=tuple(parts), padding_elements=shard - start)


def _family(modules: tuple[str, ...], parameter: str) -> str:
    """Its name within the module of the unit that it lies in, numbers left out."""
    around = next((module for module in modules if module and parameter.startswith(f"{module}.")), "")
    inner = parameter.removeprefix(f"{around}.")
    return _NUMBER.sub("*", f".{inner}")[1:]


def _ranks(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _atom_words(elements: int, parameter: Parameter) -> str:
    columns = parameter.shape[-1] if len(parameter.shape) > 1 else 0
    if elements >= parameter.num_elements > 1:
        return "whole"
    if elements <= 1:
        return "any cut"
    if columns and elements % columns == 0:
        rows = elements // columns
        return f"{rows} rows together" if rows > 1 else "whole rows"
    return f"{elements:,} elements together"
