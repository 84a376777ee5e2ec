"""Prefetch lists: of units that run later, in forward or in backward."""

from collections.abc import Iterator, Mapping, Sequence

from planner.check.parts import PlannedCall
from planner.check.units import Unit, in_enter_order, in_leave_order
from planner.schema.model import ModelDescription

Places = Mapping[str, Sequence[int]]
"""Places of the passes of each unit in the order in which all passes begin, or end."""


def prefetch_problems(
    model: ModelDescription, units: Sequence[Unit], calls: Sequence[PlannedCall]
) -> Iterator[str]:
    """A target has a pass after every pass of its unit; without one it would stay gathered for nothing."""
    entered = _places([unit.name for unit, _ in in_enter_order(units)])
    left = _places([unit.name for unit, _ in in_leave_order(units)])
    has_backward = {
        unit.name
        for unit in units
        if any(model.kinds[calls[run.last_call].kind].output_requires_grad for run in unit.passes)
    }
    for unit in units:
        yield from _forward(unit, entered)
        yield from _backward(unit, left, has_backward)


def _places(names: Sequence[str]) -> Places:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def _forward(unit: Unit, entered: Places) -> Iterator[str]:
    yield from _targets(unit, unit.plan.forward_prefetch, entered, "forward")
    own = [-1] if unit.is_root else entered.get(unit.name, ())
    for target in unit.plan.forward_prefetch:
        if own and target in entered and max(entered[target]) <= max(own):
            yield f"{unit.title} prefetches {target!r} in forward, which does not run later"


def _backward(unit: Unit, left: Places, has_backward: set[str]) -> Iterator[str]:
    yield from _targets(unit, unit.plan.backward_prefetch, left, "backward")
    last = sum(map(len, left.values()))
    own = [last] if unit.is_root else left.get(unit.name, ())
    for target in unit.plan.backward_prefetch:
        if not own or target not in left:
            continue
        if min(left[target]) >= min(own):
            yield f"{unit.title} prefetches {target!r} in backward, which does not run earlier in forward"
        elif target not in has_backward:
            yield f"{unit.title} prefetches {target!r} in backward, which has no backward"


def _targets(unit: Unit, targets: Sequence[str], places: Places, direction: str) -> Iterator[str]:
    if len(set(targets)) < len(targets):
        yield f"{unit.title} prefetches a unit twice in {direction}"
    for target in targets:
        if not unit.is_root and unit.name not in places:
            yield f"{unit.title} prefetches {target!r} in {direction}, but does not run"
        elif target not in places:
            yield f"{unit.title} prefetches {target!r} in {direction}, which is not a unit that runs"
