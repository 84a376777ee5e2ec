"""The request that is planned: CPUs that compute in the issuing thread, each alone on its node."""

from planner.catalog import device
from planner.schema import (
    ClientFeature,
    ClusterDescription,
    FixedChoice,
    HostRuns,
    Limits,
    LinkSheet,
    ModelDescription,
    NodeGroup,
    PlanRequest,
    Precision,
    Profile,
    Reserve,
    SearchLimits,
    Workload,
)

FEATURES = (
    ClientFeature.PREFETCH,
    ClientFeature.CHECKPOINT_FULL,
    ClientFeature.GROUPED_UNITS,
    ClientFeature.REDUCE_SCATTER_BUFFERS,
    ClientFeature.ACCUMULATION,
)
"""Knobs that the ranks of this benchmark can apply, and whose costs it measures."""
_WHOLE_BLOCKS = FixedChoice(knob="split_blocks", value=False)
"""Parts of blocks are not measured."""


def request(
    model: ModelDescription,
    profile: Profile,
    *,
    num_ranks: int,
    point: tuple[int, int],
    num_micro_batches: int,
    megabits: int | None,
    budget_bytes: int | None,
    host_runs: HostRuns,
) -> PlanRequest:
    """Plan a model in float32 over so many ranks.

    Args:
        model: described at `point`.
        profile: measured on these ranks.
        num_ranks: each on a node of its own.
        point: (micro-batch, sequence).
        num_micro_batches: of an optimizer step.
        megabits: of the link; None is a thousand times a thousand.
        budget_bytes: for tensors; None is all memory.
        host_runs: what the issuing thread runs itself.
    """
    micro_batch, sequence = point
    rate = (megabits or 10**6) * 10**6 // 8
    link = LinkSheet(name="throttled", bytes_per_s=rate, latency_ns=100_000)
    sheet = device("cpu").model_copy(update={"host_runs": host_runs, "memory_bytes": 2**36})
    return PlanRequest(
        model=model,
        cluster=ClusterDescription(
            name="throttled",
            node_groups=(
                NodeGroup(num_nodes=num_ranks, devices_per_node=1, device=sheet, host_cores=1, intra_node=link),
            ),
            inter_node=link,
            reserve=Reserve(communicator_bytes=0, pair_communicator_bytes=0, fragmentation=0.0),
        ),
        workload=Workload(
            micro_batch=micro_batch,
            sequence=sequence,
            global_batch=micro_batch * num_ranks * num_micro_batches,
            precision=Precision(param_dtype=None, reduce_dtype=None),
        ),
        profile=profile,
        limits=Limits(memory_bytes=budget_bytes),
        fixed=(_WHOLE_BLOCKS,),
        client_features=FEATURES,
        search=SearchLimits(gap=0.01, deterministic_time=8.0),
    )


def within(base: PlanRequest, budget_bytes: int) -> PlanRequest:
    """The same with a budget."""
    return base.model_copy(update={"limits": Limits(memory_bytes=budget_bytes)})


def run_by(base: PlanRequest, host_runs: HostRuns) -> PlanRequest:
    """The same on devices whose issuing thread runs this."""
    (group,) = base.cluster.node_groups
    assert not isinstance(group.device, str)
    sheet = group.device.model_copy(update={"host_runs": host_runs})
    nodes = group.model_copy(update={"device": sheet})
    return base.model_copy(update={"cluster": base.cluster.model_copy(update={"node_groups": (nodes,)})})
