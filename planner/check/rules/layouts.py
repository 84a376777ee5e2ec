"""Layouts: each ragged buffer holds the parameters of one unit, apart from each other, in shards of equal size."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from planner.check.parts import PlannedCall
from planner.check.units import Unit, module_owners, owner
from planner.schema.decisions import Decisions, Layout
from planner.schema.model import ModelDescription, Parameter


def layout_problems(model: ModelDescription, decisions: Decisions) -> Iterator[str]:
    """What forbids to apply the layouts of a plan."""
    counted = Counter(layout.name for layout in decisions.layouts)
    used = Counter(name for unit in decisions.units for name in unit.layouts)
    for name in sorted(counted.keys() | used.keys()):
        if (counted[name], used[name]) != (1, 1):
            yield f"layout {name!r} is listed {counted[name]} times and {used[name]} units have it, not one of each"
    if any((counted[name], used[name]) != (1, 1) for name in counted.keys() | used.keys()):
        return
    layouts = {layout.name: layout for layout in decisions.layouts}
    owners = module_owners(decisions.units)
    owned: dict[int | None, dict[str, Parameter]] = {}
    for name, parameter in model.iter_parameters():
        if parameter.tied_to is None:
            owned.setdefault(owner(name, owners), {})[name] = parameter
    dims = {item.parameter for item in decisions.shard_dims}
    for index, unit in enumerate(decisions.units):
        if not unit.layouts:
            continue
        parameters = owned.get(index, {})
        placed = Counter(entry.parameter for name in unit.layouts for entry in layouts[name].entries)
        if placed != Counter(list(parameters)):
            yield f"unit {unit.modules[0]!r}: its layouts do not hold each of its parameters once"
            continue
        if dims & parameters.keys():
            yield f"unit {unit.modules[0]!r}: a parameter with a layout has no dimension to be sharded on"
        ranks = decisions.mesh_of(unit).shard
        for name in unit.layouts:
            yield from _buffer_problems(layouts[name], parameters, ranks)


def alias_problems(model: ModelDescription, units: Sequence[Unit], calls: Sequence[PlannedCall]) -> Iterator[str]:
    """What is gathered in place is one buffer, comes from other ranks, and is let go of in a backward."""
    for unit in units:
        runs_backward = unit.is_root or any(
            model.kinds[calls[run.last_call].kind].output_requires_grad for run in unit.passes
        )
        if unit.plan.alias_gathers and (len(unit.flats) != 1 or not unit.plan.layouts):
            yield f"{unit.title} is gathered in place, and has no single layout"
        elif unit.plan.alias_gathers and unit.mesh.shard == 1:
            yield f"{unit.title} is gathered in place on one rank, where nothing is gathered"
        elif unit.plan.alias_gathers and not runs_backward:
            yield f"{unit.title} is gathered in place and has no backward: what is gathered there would stay"


def _buffer_problems(layout: Layout, parameters: Mapping[str, Parameter], ranks: int) -> Iterator[str]:
    title, members = f"layout {layout.name!r}", [parameters[entry.parameter] for entry in layout.entries]
    if {(member.dtype, member.requires_grad) for member in members} not in (
        {(layout.dtype, True)},
        {(layout.dtype, False)},
    ):
        yield f"{title}: parameters must be {layout.dtype}, and all trainable or all frozen"
    for entry, member in zip(layout.entries, members, strict=True):
        if entry.num_elements != member.num_elements:
            yield f"{title}: {entry.parameter!r} has {member.num_elements} elements, not {entry.num_elements}"
    places = sorted((entry.offset_elements, entry.offset_elements + entry.num_elements) for entry in layout.entries)
    if any(begin < end for (_, end), (begin, _) in pairwise(places)):
        yield f"{title}: parameters overlap"
    if places and places[-1][1] > ranks * layout.shard_elements:
        yield f"{title}: {ranks} shards of {layout.shard_elements} elements are too short"
