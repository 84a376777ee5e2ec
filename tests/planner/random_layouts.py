"""Random ragged buffers for the units of any decisions: one for each dtype and requires_grad, sometimes two."""

import random
from collections.abc import Sequence

from planner.program.inputs import partition_of
from planner.schema import Decisions, InconsistentRequest, Layout, LayoutEntry, Parameter, PlanRequest


def with_layouts(
    request: PlanRequest, decisions: Decisions, rng: random.Random, *, chance: float = 0.7
) -> Decisions:
    """The decisions with layouts for some of their units; what lies in one is sharded on no dimension."""
    try:
        parts = partition_of(request.model, decisions)
    except InconsistentRequest:
        return decisions
    owned = {unit.modules: unit.parameters for unit in parts.units}
    running = {parts.units[number].modules for number in parts.with_backward}
    layouts: list[Layout] = []
    units = []
    for unit in decisions.units:
        made = []
        if owned[unit.modules] and rng.random() < chance:
            made = list(
                _layouts(unit.modules[0] or "root", owned[unit.modules], decisions.mesh_of(unit).shard, rng)
            )
        layouts += made
        may_alias = len(made) == 1 and decisions.mesh_of(unit).shard > 1 and unit.modules in running
        update = {
            "layouts": tuple(layout.name for layout in made),
            "alias_gathers": may_alias and rng.random() < chance,
        }
        units.append(unit.model_copy(update=update))
    placed = {entry.parameter for layout in layouts for entry in layout.entries}
    dims = tuple(item for item in decisions.shard_dims if item.parameter not in placed)
    return decisions.model_copy(update={"units": tuple(units), "layouts": tuple(layouts), "shard_dims": dims})


def _layouts(
    unit: str, parameters: Sequence[tuple[str, Parameter]], shard: int, rng: random.Random
) -> list[Layout]:
    kinds: dict[tuple[str, bool, int], list[tuple[str, Parameter]]] = {}
    num = rng.choice((1, 2))
    for name, parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.requires_grad, rng.randrange(num)), []).append(
            (name, parameter)
        )
    return [laid_out(f"{unit}.{number}", members, shard, rng) for number, members in enumerate(kinds.values())]


def laid_out(name: str, members: Sequence[tuple[str, Parameter]], shard: int, rng: random.Random) -> Layout:
    """One after the other in a random order, with random gaps."""
    order = list(members)
    rng.shuffle(order)
    entries, offset = [], 0
    for full_name, parameter in order:
        offset += rng.choice((0, 0, 3))
        entries.append(
            LayoutEntry(parameter=full_name, offset_elements=offset, num_elements=parameter.num_elements)
        )
        offset += parameter.num_elements
    return Layout(
        name=name,
        dtype=order[0][1].dtype,
        shard_elements=-(-offset // shard) + rng.choice((0, 1, 5)),
        entries=tuple(entries),
    )
