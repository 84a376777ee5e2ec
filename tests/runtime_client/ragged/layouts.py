"""Layouts for tests: parameters in a given order, each at the earliest place that cuts no atom."""

from collections.abc import Callable, Sequence
from itertools import count

from torch import nn

from planner.schema import Decisions, Layout, LayoutEntry
from runtime_client.apply.units import resolve_units

Atom = Callable[[str, nn.Parameter], int]
"""Elements of a parameter that must stay together, from its start on; by its name."""


def one(_name: str, _parameter: nn.Parameter) -> int:
    return 1


def rows(_name: str, parameter: nn.Parameter) -> int:
    return parameter.numel() // parameter.shape[0]


def whole_matrices(_name: str, parameter: nn.Parameter) -> int:
    return parameter.numel() if parameter.ndim == 2 else 1


def blocks_of_256(_name: str, parameter: nn.Parameter) -> int:
    return 256 if parameter.numel() >= 4096 else 1


def earliest_starts(sizes: Sequence[int], atoms: Sequence[int], shard: int, ranks: int) -> list[int] | None:
    """Offsets for shards of `shard` elements; None when they do not fit."""
    offsets, end = [], 0
    for size, atom in zip(sizes, atoms, strict=True):
        start = _earliest(end, size, atom, shard)
        if start + size > shard * ranks:
            return None
        offsets.append(start)
        end = start + size
    return offsets


def _earliest(end: int, size: int, atom: int, shard: int) -> int:
    """First start from `end` on at which every boundary of a shard inside lies between two atoms."""
    next_shard = (end // shard + 1) * shard
    for low, bound in ((end, next_shard), (next_shard, next_shard + shard)):
        if low + size <= bound:
            return low
        start = low + (bound - low) % atom
        if start < bound and (start + size <= bound + shard or shard % atom == 0):
            return start
    return 2**60


def with_layouts(
    model: nn.Module,
    decisions: Decisions,
    *,
    atom: Atom = one,
    units: Callable[[Sequence[str]], bool] = lambda modules: True,
    group: Callable[[str], str] = lambda name: "",
    reverse: bool = False,
    spare: int = 0,
    align: int = 1,
    alias: bool = False,
) -> Decisions:
    """The same decisions with ragged buffers, one per dtype, requires_grad and `group` of the chosen units.

    Each shard is the smallest multiple of `align` that fits, and `spare` elements more for padding in the middle.
    With `alias` units of one buffer are gathered in place.
    """
    layouts: list[Layout] = []
    plans = []
    for unit in resolve_units(model, decisions):
        plan = unit.plan
        if units(plan.modules) and unit.parameters:
            made = _unit_layouts(
                unit.parameters, decisions.mesh.shard, atom, group, reverse, spare, align, len(layouts)
            )
            layouts += made
            names = tuple(layout.name for layout in made)
            plan = plan.model_copy(update={"layouts": names, "alias_gathers": alias and len(names) == 1})
        plans.append(plan)
    return decisions.model_copy(update={"units": tuple(plans), "layouts": tuple(layouts)})


def _unit_layouts(
    parameters: Sequence[tuple[str, nn.Parameter]],
    ranks: int,
    atom: Atom,
    group: Callable[[str], str],
    reverse: bool,
    spare: int,
    align: int,
    number: int,
) -> list[Layout]:
    kinds: dict[tuple[str, bool, str], dict[int, tuple[str, nn.Parameter]]] = {}
    for name, parameter in parameters:
        key = (str(parameter.dtype).removeprefix("torch."), parameter.requires_grad, group(name))
        kinds.setdefault(key, {}).setdefault(id(parameter), (name, parameter))
    made = []
    for (dtype, _, _), found in kinds.items():
        members = list(found.values())[:: -1 if reverse else 1]
        sizes = [parameter.numel() for _, parameter in members]
        atoms = [atom(name, parameter) for name, parameter in members]
        least = -(-sum(sizes) // (ranks * align)) * align
        shard = next(s for s in count(least, align) if earliest_starts(sizes, atoms, s, ranks)) + spare
        while not (offsets := earliest_starts(sizes, atoms, shard, ranks)):
            shard += 1
        entries = [
            LayoutEntry(parameter=name, offset_elements=offset, num_elements=size)
            for (name, _), offset, size in zip(members, offsets, sizes, strict=True)
        ]
        made.append(
            Layout.model_validate(
                {
                    "name": f"buffer {number + len(made)}",
                    "dtype": dtype,
                    "shard_elements": shard,
                    "entries": tuple(entries),
                }
            )
        )
    return made
