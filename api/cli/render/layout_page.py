"""What `shardwright layout` prints: each buffer with its proof, drawn over the ranks."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.cli.render.rank_bars import RankBars
from api.quantities import count, percent, quantity, significant, size
from planner.block_names import fold_names, template
from planner.layout.owners import PlannedOwners
from planner.layout.plan import LayoutPlan
from planner.layout.planned import PlannedBuffer, PlannedUnit

_TERMS = Text(
    "given order: one buffer for all that may share it, in the order of the module; "
    "FSDP2: each parameter cut along dimension 0 without regard to atoms",
    style="quiet",
)


def layout_page(name: str, plan: LayoutPlan) -> RenderableType:
    """The whole page: the padding first, then one part for each kind of unit."""
    head = Group(
        Text.assemble(
            (name, "headline"),
            f"  {quantity(plan.num_elements)} elements in {count(len(plan.units), 'unit')} "
            f"on {count(plan.num_ranks, 'rank')}",
        ),
        _padding_line(
            plan.num_elements,
            plan.padding_elements,
            given=sum(unit.given_order_padding_elements for unit in plan.units),
            even=sum(unit.even_padding_elements for unit in plan.units),
        ),
    )
    owners = None if plan.owners is None else _owners_part(plan.owners)
    notes = [Text.assemble(("note  ", "warning"), note) for note in plan.notes]
    return spaced((head, *(_unit_part(units) for units in _equal_units(plan)), owners, *notes, _TERMS))


def _equal_units(plan: LayoutPlan) -> Iterator[list[PlannedUnit]]:
    """Units of one family whose buffers are alike."""
    found: dict[tuple[object, ...], list[PlannedUnit]] = {}
    for unit in plan.units:
        buffers = tuple(
            (
                buffer.layout.shard_elements,
                tuple(
                    (template(entry.parameter), entry.offset_elements, entry.num_elements)
                    for entry in buffer.layout.entries
                ),
            )
            for buffer in unit.buffers
        )
        found.setdefault((template(unit.modules[0]), buffers), []).append(unit)
    yield from found.values()


def _unit_part(units: list[PlannedUnit]) -> RenderableType:
    first = units[0]
    title = Text.assemble(
        (fold_names(module for unit in units for module in unit.modules), "title"),
        (f"  {quantity(first.num_elements)} elements, {count(len(first.buffers), 'buffer')}", "quiet"),
    )
    comparison = _padding_line(
        first.num_elements,
        first.padding_elements,
        given=first.given_order_padding_elements,
        even=first.even_padding_elements,
    )
    parts = [part for buffer in first.buffers for part in _buffer_part(first, buffer)]
    return Group(title, *map(indented, (comparison, *parts)))


def _padding_line(elements: int, padding: int, *, given: int, even: int) -> Text:
    return Text.assemble(
        "padding ",
        (_share(padding, elements), "figure"),
        ("   given order ", "quiet"),
        _share(given, elements),
        ("   FSDP2 ", "quiet"),
        _share(even, elements),
    )


def _buffer_part(unit: PlannedUnit, buffer: PlannedBuffer) -> Iterator[RenderableType]:
    elements = buffer.num_elements
    proof = (
        "optimal"
        if buffer.solved.layout.status == "optimal"
        else f"at least {_share(buffer.lower_bound_padding_elements, elements)}"
    )
    yield Text.assemble(
        (buffer.layout.name.removeprefix(f"{unit.name}/"), "headline"),
        f"  {quantity(elements)}, shards of {buffer.layout.shard_elements:,}, padding "
        f"{_share(buffer.padding_elements, elements)} ({proof})",
    )
    yield RankBars(unit.modules, buffer)


def _owners_part(owners: PlannedOwners) -> RenderableType:
    solved = owners.solved
    busiest = max(owners.loads, key=lambda load: (load.flops, load.gathered_bytes))
    proof = (
        "no owner can have less"
        if solved.largest_work == solved.work_lower_bound
        else f"at least {quantity(solved.work_lower_bound)}"
    )
    less = 1 - solved.largest_work / owners.longest_first_flops if owners.longest_first_flops else 0.0
    against = f", {percent(less)} less than longest first" if less > 0 else ""
    return Group(
        Text("Owners", style="title"),
        indented(
            Text(
                f"{len(owners.names)} cut matrices are updated whole by their owners: the busiest has "
                f"{busiest.num_matrices} with {quantity(solved.largest_work)}FLOP ({proof}{against}), gathers "
                f"{size(max(load.gathered_bytes for load in owners.loads))} and gives as much back"
            )
        ),
    )


def _share(part: int, whole: int) -> str:
    """Padding of parameters, as percent."""
    fraction = part / whole if whole else 0.0
    return f"{significant(100 * fraction)} %" if fraction >= 1 else percent(fraction)
