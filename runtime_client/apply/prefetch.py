"""Explicit prefetch lists: which unit gathers which others ahead of time."""

from graphlib import CycleError, TopologicalSorter
from typing import cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from planner.schema import Decisions, UnitPlan
from runtime_client.apply.modules import find_module
from runtime_client.apply.units import is_below
from runtime_client.errors import PrefetchOrder


def check_prefetch(decisions: Decisions) -> None:
    """Targets must be other units, and one order of execution must agree with all lists.

    An edge to a unit that already ran makes FSDP2 gather it again and hold it, without a word. A unit begins before
    those inside it, in forward and in backward.

    Raises:
        PrefetchOrder: an unknown target, an edge to the unit itself or to one around it, or a contradiction.
    """
    heads = {unit.modules[0]: index for index, unit in enumerate(decisions.units)}
    root = len(decisions.units) - 1
    before: dict[int, set[int]] = {}
    for index, unit in enumerate(decisions.units):
        for field in ("forward_prefetch", "backward_prefetch"):
            for place, target in enumerate(getattr(unit, field)):
                where = f"decisions.units[{index}].{field}[{place}]"
                other = _target(heads, target, decisions, index, where)
                if index != root and not _is_inside(decisions.units[other], unit):
                    early, late = (index, other) if field == "forward_prefetch" else (other, index)
                    before.setdefault(late, set()).add(early)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        names = " -> ".join(repr(decisions.units[index].modules[0]) for index in error.args[1])
        raise PrefetchOrder(
            f"decisions.units: prefetch lists contradict each other, {names}: one of them names a unit that has "
            "already run. Forward lists name later units, backward lists earlier ones."
        ) from None


def set_prefetch(model: nn.Module, decisions: Decisions) -> None:
    """Hand the lists to FSDP2, exactly as the plan has them; empty lists leave implicit prefetching."""
    for unit in decisions.units:
        module = _sharded(model, unit.modules[0])
        if unit.forward_prefetch:
            module.set_modules_to_forward_prefetch([_sharded(model, path) for path in unit.forward_prefetch])
        if unit.backward_prefetch:
            module.set_modules_to_backward_prefetch([_sharded(model, path) for path in unit.backward_prefetch])


def _target(heads: dict[str, int], target: str, decisions: Decisions, index: int, where: str) -> int:
    if target not in heads:
        raise PrefetchOrder(
            f"{where}: {target!r} is not the first module of any unit. Name a unit by its first module."
        )
    if _is_inside(decisions.units[index], decisions.units[heads[target]]):
        raise PrefetchOrder(f"{where}: {target or 'the root'!r} is gathered by then. Remove it from the list.")
    return heads[target]


def _is_inside(inner: UnitPlan, outer: UnitPlan) -> bool:
    """Whether some module of a unit is one of another's, or lies inside it."""
    return any(is_below(path, ancestor) for path in inner.modules for ancestor in outer.modules)


def _sharded(model: nn.Module, path: str) -> FSDPModule:
    return cast(FSDPModule, find_module(model, path, where="prefetch"))
