"""Nothing fits: what binds, and the smallest change that would do."""

from math import ceil

from planner.leanest import Leanest, leanest, leanest_of
from planner.refuse import MAX_DEVICES
from planner.schema import (
    ClusterDescription,
    Infeasibility,
    MemoryBudget,
    MemoryCategory,
    PlanRequest,
)
from planner.schema.base import MAX_INTEGER
from planner.simulate.predict import predict
from planner.space.opened import regions

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
    """Least memory over all plans, the device memory and the number of ranks with which one fits."""
    best = leanest(request)
    needed, budget = best.evaluation.needed, best.item.costs.budget
    peak = predict(request, best.item.unpack(request, best.assignment)).peak
    binding = max(peak.by_category_bytes, key=lambda category: peak.by_category_bytes[category])
    ranks = _fewest_ranks(request)
    device_bytes = _device_bytes(budget, needed)
    return Infeasibility(
        reason=f"{_least(best)} of device memory for tensors, and {_left(budget)}; the peak is at {peak.moment}",
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
                else f"more ranks alone do not help (tried up to {_most_ranks(request)})"
            ),
        ),
    )


def _fewest_ranks(request: PlanRequest) -> int | None:
    factor = 2
    while request.cluster.num_devices * factor <= _most_ranks(request):
        larger = _scaled(request, factor)
        if _fits(larger):
            return larger.cluster.num_devices
        factor *= 2
    return None


def _most_ranks(request: PlanRequest) -> int:
    return min(MAX_FACTOR * request.cluster.num_devices, MAX_DEVICES)


def _fits(request: PlanRequest) -> bool:
    """Whether the fully sharded mesh fits with some grouping."""
    sharded = [region for region in regions(request) if region.candidate.mesh.replicate == 1]
    return leanest_of(sharded, until=lambda best: best.fits).fits


def _scaled(request: PlanRequest, factor: int) -> PlanRequest:
    """The same job on `factor` times the nodes (a single node's link stands in where no other is known)."""
    cluster = request.cluster
    groups = tuple(g.model_copy(update={"num_nodes": g.num_nodes * factor}) for g in cluster.node_groups)
    inter_node = cluster.inter_node or cluster.node_groups[0].intra_node
    larger: ClusterDescription = cluster.model_copy(update={"node_groups": groups, "inter_node": inter_node})
    batch = request.workload.micro_batch * larger.num_devices
    global_batch = -(-request.workload.global_batch // batch) * batch
    workload = request.workload.model_copy(update={"global_batch": global_batch})
    fixed = tuple(choice for choice in request.fixed if not choice.knob.startswith("mesh."))
    return request.model_copy(update={"cluster": larger, "workload": workload, "fixed": fixed})


def _device_bytes(budget: MemoryBudget, needed: int) -> int | None:
    """Device memory whose budget would be `needed`, the reserves being what they are; None beyond exact numbers."""
    taken = budget.context_bytes + budget.communicators_bytes + budget.other_bytes
    share = budget.fragmentation_bytes / budget.device_bytes
    if share >= 1:
        return None
    size = ceil((needed + taken) / (1 - share))
    return size if size <= MAX_INTEGER else None


def _least(best: Leanest) -> str:
    """What is needed, and whether that is proven."""
    most = "every plan needs at least" if best.is_proven else "no plan was found that needs less than"
    return f"{most} {_size(best.evaluation.needed)}"


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
