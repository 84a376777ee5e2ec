"""Nothing fits: what binds, and the smallest change that would do."""

from collections.abc import Iterator
from math import ceil

from planner.found import Found
from planner.refuse import MAX_DEVICES
from planner.relaxations import choices_to_drop, features_to_add
from planner.resize import has_plan, on_times_the_nodes
from planner.schema import (
    ClientFeature,
    FixedChoice,
    Infeasibility,
    MemoryBudget,
    MemoryCategory,
    PlanRequest,
)
from planner.schema.base import MAX_INTEGER
from planner.search import search
from planner.simulate.predict import predict
from planner.space.candidate import may_offload_activations
from planner.space.fixed import allows
from planner.space.opened import Goal
from solver.schedule.problem import Aim

MAX_FACTOR = 64
"""How many times the nodes the search for a fitting number of ranks tries."""

_ADVICE = {
    MemoryCategory.ACTIVATIONS: (
        "shorten the sequence, lower the micro-batch, or split the context (more ranks do not help)"
    ),
    MemoryCategory.TRANSIENTS: "shorten the sequence, lower the micro-batch, or chunk the loss",
    MemoryCategory.PARAMETERS: "use more ranks: each holds its share of parameters, gradients and optimizer state",
    MemoryCategory.OPTIMIZER: "use more ranks, or an optimizer with smaller state",
    MemoryCategory.GRADIENTS: "use more ranks: gradients are sharded",
    MemoryCategory.UNSHARDED_PARAMETERS: "use smaller units: one gathered unit alone is too large",
    MemoryCategory.UNSHARDED_GRADIENTS: "use smaller units: the gradients of one unit alone are too large",
    MemoryCategory.GATHER_BUFFERS: "use smaller units: one gather buffer alone is too large",
    MemoryCategory.REDUCE_BUFFERS: "use smaller units or a narrower reduce dtype",
    MemoryCategory.BUFFERS: "registered buffers and inputs are whole on every rank; make them smaller",
}


def explain_infeasible(request: PlanRequest) -> Infeasibility:
    """Why nothing keeps the bounds: memory, or the step time that was asked for."""
    dropped, added = choices_to_drop(request), features_to_add(request)
    found = _reason(request)
    ways = (*_without(dropped), *_with(added), *_on_hosts(request))
    return found.model_copy(
        update={"choices_to_drop": dropped, "features_to_add": added, "advice": (*ways, *found.advice)}
    )


def _without(dropped: tuple[FixedChoice, ...]) -> Iterator[str]:
    if dropped:
        names = " and ".join(f"{choice.knob} = {choice.value!r}" for choice in dropped)
        yield f"open again what is fixed: without {names} there is a plan"


def _with(added: tuple[ClientFeature, ...]) -> Iterator[str]:
    if added:
        names = " and ".join(added)
        yield f"use a client that applies {names} (client_features): with that there is a plan"


def _on_hosts(request: PlanRequest) -> Iterator[str]:
    if allows(request, ClientFeature.OFFLOAD) and not all(
        group.host_memory_bytes for group in request.cluster.node_groups
    ):
        yield (
            "say how much memory the hosts have (node_groups.host_memory_bytes): units and optimizer state could "
            "be there"
        )


def _reason(request: PlanRequest) -> Infeasibility:
    if request.limits.step_time_ns is not None and (late := search(request, goal=Goal())).best is not None:
        return _too_slow(late, request.limits.step_time_ns)
    exact = request.model_copy(update={"search": request.search.model_copy(update={"gap": 0.0})})
    found = search(exact, goal=Goal(aim=Aim.MEMORY, is_budgeted=False))
    if found.best is None:
        return Infeasibility(
            reason="units are to be offloaded, and no host holds its share of them", binding="world_size"
        )
    assert found.assignment is not None
    best, evaluation = found.best, found.best.heuristic.evaluate(found.assignment)
    needed, budget = evaluation.needed - best.costs.reserved_bytes, best.costs.budget
    peak = predict(request, best.unpack(request, found.assignment)).peak
    binding = max(peak.by_category_bytes, key=lambda category: peak.by_category_bytes[category])
    ranks = _fewest_ranks(request)
    device_bytes = _device_bytes(budget, needed)
    whose = " with its activations on the device" if may_offload_activations(request) else ""
    most = (
        f"every plan{whose} needs at least"
        if found.lower_bound >= evaluation.needed
        else f"no plan{whose} was found that needs less than"
    )
    need = f"{most} {_size(needed)} of device memory for tensors"
    return Infeasibility(
        reason=f"{need}, and {_left(budget)}; the peak is at {peak.moment}",
        binding=binding,
        needed_bytes=needed,
        budget_bytes=budget.budget_bytes,
        smallest_device_memory_bytes=device_bytes,
        fewest_ranks=ranks,
        advice=(
            _ADVICE[binding],
            *(() if device_bytes is None else (f"a device with {_size(device_bytes)} would do",)),
            (
                f"{ranks} ranks of this device would do"
                if ranks
                else f"more ranks alone do not help (tried up to {most_ranks(request)})"
            ),
        ),
    )


def _too_slow(found: Found, limit_ns: int) -> Infeasibility:
    """Some plan fits, but none of those is fast enough; `found` is the fastest."""
    assert found.best is not None
    assert found.assignment is not None
    fastest_ns = found.best.step_ns(found.best.heuristic.evaluate(found.assignment))
    return Infeasibility(
        reason=f"no plan that fits takes less than {_time(found.lower_bound)}; the limit is {_time(limit_ns)}",
        binding="step_time",
        budget_bytes=found.best.costs.budget.budget_bytes,
        advice=(f"allow {_time(fastest_ns)}: that plan was found", "or use more or faster devices"),
    )


def _fewest_ranks(request: PlanRequest) -> int | None:
    factor = 2
    while request.cluster.num_devices * factor <= most_ranks(request):
        larger = on_times_the_nodes(request, factor)
        if _fits(larger):
            return larger.cluster.num_devices
        factor *= 2
    return None


def most_ranks(request: PlanRequest) -> int:
    """The most ranks that are tried for a request that does not fit."""
    return min(MAX_FACTOR * request.cluster.num_devices, MAX_DEVICES)


def _fits(request: PlanRequest) -> bool:
    """Whether the fully sharded mesh fits with some grouping."""
    sharded = FixedChoice(knob="mesh.replicate", value=1)
    return has_plan(request.model_copy(update={"fixed": (*request.fixed, sharded)}), goal=Goal())


def _device_bytes(budget: MemoryBudget, needed: int) -> int | None:
    """Device memory whose budget would be `needed`, the reserves being what they are; None beyond exact numbers."""
    taken = budget.context_bytes + budget.communicators_bytes + budget.other_bytes
    share = budget.fragmentation_bytes / budget.device_bytes
    if share >= 1:
        return None
    size = ceil((needed + taken) / (1 - share))
    return size if size <= MAX_INTEGER else None


def _left(budget: MemoryBudget) -> str:
    reserves = {
        "context": budget.context_bytes,
        "communicators": budget.communicators_bytes,
        "fragmentation": budget.fragmentation_bytes,
        "other": budget.other_bytes,
    }
    if budget.budget_bytes or sum(reserves.values()) < budget.device_bytes:
        return f"{_size(budget.budget_bytes)} are left of {_size(budget.device_bytes)}"
    parts = ", ".join(f"{name} {_size(size)}" for name, size in reserves.items() if size)
    return f"the reserves take all of the device's {_size(budget.device_bytes)} ({parts})"


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**24 else f"{size} bytes"


def _time(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3f} ms"
