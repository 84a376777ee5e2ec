"""Ragged buffers: what FSDP2 takes for the parameters of a unit, and what one rank has of the real ones."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from planner.program.units import Partition
from planner.schema import Decisions, InconsistentRequest, Layout, Parameter


def layouts_of(decisions: Decisions) -> dict[tuple[str, ...], tuple[Layout, ...]]:
    """Layouts by the modules of the unit that they are planned for; units that are cut evenly are left out.

    Raises:
        InconsistentRequest: a layout that there is not, or that no unit or several have.
    """
    known = {layout.name: layout for layout in decisions.layouts}
    if len(known) < len(decisions.layouts):
        raise InconsistentRequest("decisions.layouts: two layouts have one name")
    used = [name for unit in decisions.units for name in unit.layouts]
    for name in used:
        if name not in known:
            raise InconsistentRequest(f"decisions.units[..].layouts: there is no layout {name!r}")
    for name in known:
        if used.count(name) != 1:
            raise InconsistentRequest(
                f"decisions.layouts: {name!r} is the layout of {used.count(name)} units; each belongs to one"
            )
    return {unit.modules: tuple(known[name] for name in unit.layouts) for unit in decisions.units if unit.layouts}


def require_sound_layouts(parts: Partition, shards: Sequence[int]) -> None:
    """Refuse layouts that do not hold exactly the parameters of their unit, each buffer of one kind.

    Args:
        parts: the units, with their layouts.
        shards: shard degree of each unit.

    Raises:
        InconsistentRequest: for the first that does not.
    """
    for unit, layouts in parts.layouts.items():
        owned = dict(parts.units[unit].parameters)
        title = parts.units[unit].name
        placed = [entry.parameter for layout in layouts for entry in layout.entries]
        if sorted(placed) != sorted(owned):
            other = next(iter({*placed} ^ {*owned}), "one of them")
            raise InconsistentRequest(
                f"decisions.units[..].layouts of {title!r} must hold each parameter of the unit once; {other!r} is "
                "missing, there twice, or of another unit"
            )
        for layout in layouts:
            _require_sound(layout, owned, shards[unit])
        if dims := sorted(owned.keys() & parts.dims.keys()):
            raise InconsistentRequest(
                f"decisions.shard_dims: {dims[0]!r} lies in a layout, whose buffer is sharded on its only dimension"
            )


def _require_sound(layout: Layout, owned: Mapping[str, Parameter], shard: int) -> None:
    where = f"decisions.layouts[{layout.name!r}]"
    members = [owned[entry.parameter] for entry in layout.entries]
    if not members:
        raise InconsistentRequest(f"{where}: no parameter lies in it; leave it out")
    if len({(parameter.dtype, parameter.requires_grad) for parameter in members}) > 1:
        raise InconsistentRequest(f"{where}: its parameters differ in dtype or requires_grad; split it")
    if layout.dtype != members[0].dtype:
        raise InconsistentRequest(f"{where}.dtype is {layout.dtype}, but its parameters are {members[0].dtype}")
    end = 0
    for entry in sorted(layout.entries, key=lambda entry: entry.offset_elements):
        if entry.num_elements != owned[entry.parameter].num_elements:
            raise InconsistentRequest(
                f"{where}: {entry.parameter!r} has {owned[entry.parameter].num_elements} elements, not "
                f"{entry.num_elements}"
            )
        if entry.offset_elements < end:
            raise InconsistentRequest(f"{where}: {entry.parameter!r} overlaps the parameter before it")
        end = entry.offset_elements + entry.num_elements
    if end > shard * layout.shard_elements:
        raise InconsistentRequest(
            f"{where} ends at element {end}, but {shard} shards of {layout.shard_elements} hold "
            f"{shard * layout.shard_elements}"
        )


def require_sound_aliases(parts: Partition, shards: Sequence[int], aliased: Sequence[bool]) -> None:
    """Refuse to gather in place what has no buffer of its own, or nobody to let go of it.

    Args:
        parts: the units, with their layouts.
        shards: shard degree of each unit.
        aliased: whether each unit is to be gathered in place.

    Raises:
        InconsistentRequest: for the first that cannot be.
    """
    for unit, shard in enumerate(shards):
        if aliased[unit] and not may_alias(parts, unit, shard):
            raise InconsistentRequest(
                f"decisions.units[..].alias_gathers of {parts.units[unit].name!r}: a unit is gathered in place "
                "where it has one layout, on several ranks, and a backward, which lets go of what was gathered for "
                "it; leave it out"
            )


def may_alias(parts: Partition, unit: int, shard: int) -> bool:
    """Whether a unit, sharded over so many ranks, can be gathered in place."""
    return shard > 1 and len(parts.layouts.get(unit, ())) == 1 and unit in parts.with_backward


def piece_elements(parts: Partition, shards: Sequence[int]) -> dict[str, int]:
    """Elements that the fullest rank has of each parameter that lies in a layout; each buffer has its own."""
    found: dict[str, int] = {}
    for unit, layouts in parts.layouts.items():
        for layout in layouts:
            found |= elements_on_fullest(layout, shards[unit])
    return found


@lru_cache(maxsize=4096)
def elements_on_fullest(layout: Layout, num_ranks: int) -> Mapping[str, int]:
    """Elements of each parameter on the rank that holds the most; the first of equals."""
    shard = layout.shard_elements
    ends = {
        entry.parameter: (entry.offset_elements, entry.offset_elements + entry.num_elements)
        for entry in layout.entries
    }
    held = {0: 0}
    """Of ranks that a parameter begins or ends on, and of the first one between; further ones hold as much."""
    for start, end in ends.values():
        for rank in sorted({start // shard, start // shard + 1, (end - 1) // shard}) if start < end else ():
            held[rank] = held.get(rank, 0) + _overlap(start, end, rank, shard)
    fullest = max(sorted(held), key=held.__getitem__)
    return {name: _overlap(start, end, fullest, shard) for name, (start, end) in ends.items()}


def _overlap(start: int, end: int, rank: int, shard: int) -> int:
    """Elements from `start` to `end` that a rank holds."""
    return max(0, min(end, (rank + 1) * shard) - max(start, rank * shard))
