"""The same job on other devices, or in other micro-batches, and whether any plan of it fits."""

from planner.found import OnProgress
from planner.schema import ClusterDescription, InconsistentRequest, NodeGroup, PlanRequest
from planner.search import search
from planner.space.opened import Goal


def on_times_the_nodes(request: PlanRequest, factor: int) -> PlanRequest:
    """The same job on `factor` times the nodes; see `on_nodes`."""
    groups = request.cluster.node_groups
    return on_nodes(
        request, tuple(group.model_copy(update={"num_nodes": group.num_nodes * factor}) for group in groups)
    )


def on_nodes(request: PlanRequest, groups: tuple[NodeGroup, ...]) -> PlanRequest:
    """The same job on other nodes (a single node's link stands in where no other is known).

    The global batch is rounded up to whole micro-batches on all ranks; fixed meshes are open again.
    """
    cluster = request.cluster
    inter_node = cluster.inter_node or cluster.node_groups[0].intra_node
    other: ClusterDescription = cluster.model_copy(update={"node_groups": groups, "inter_node": inter_node})
    batch = request.workload.micro_batch * other.num_devices
    global_batch = -(-request.workload.global_batch // batch) * batch
    workload = request.workload.model_copy(update={"global_batch": global_batch})
    fixed = tuple(choice for choice in request.fixed if not choice.knob.startswith("mesh."))
    return request.model_copy(update={"cluster": other, "workload": workload, "fixed": fixed})


def in_micro_batches(request: PlanRequest, micro_batch: int) -> PlanRequest:
    """The same job in micro-batches of that many sequences and of no other size."""
    workload = request.workload.model_copy(update={"micro_batch": micro_batch})
    return request.model_copy(update={"workload": workload, "micro_batches": ()})


def has_plan(request: PlanRequest, *, goal: Goal | None = None, on_progress: OnProgress | None = None) -> bool:
    """Whether a plan was found that keeps the bounds of `goal`, the request's own where it is not given.

    Raises:
        InconsistentRequest: the fixed choices leave nothing to search.
        KeyboardInterrupt: a person stopped the search.
    """
    try:
        return search(request, on_progress, goal=goal, only_first=True).best is not None
    except InconsistentRequest:
        return False
