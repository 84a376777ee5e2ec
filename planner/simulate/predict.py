"""Predictions for a configuration: build its program, replay it, add up one optimizer step."""

from dataclasses import dataclass

from planner.costs import CostModel
from planner.extent import require_exact
from planner.program.build import build_program
from planner.program.events import OperationKind, Program
from planner.program.inputs import knobs_of, local_shards, partition_of, precision_of, step_inputs
from planner.program.units import Partition
from planner.refuse import refuse_unmodelled
from planner.schema import (
    Decisions,
    InconsistentRequest,
    MemoryPeak,
    PlanRequest,
    Predictions,
    StepBreakdown,
)
from planner.simulate.replay import Replay, replay

_EXPOSED = {
    OperationKind.COPY_IN: "exposed_all_gather_ns",
    OperationKind.ALL_GATHER: "exposed_all_gather_ns",
    OperationKind.REDUCE_SCATTER: "exposed_reduce_scatter_ns",
    OperationKind.LOCAL_REDUCE: "exposed_reduce_scatter_ns",
    OperationKind.POST_REDUCE: "exposed_reduce_scatter_ns",
    OperationKind.ALL_REDUCE: "exposed_all_reduce_ns",
    None: "exposed_launch_ns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgram:
    """The program of a configuration, with what it was built from."""

    program: Program
    partition: Partition
    costs: CostModel


def program_of(request: PlanRequest, decisions: Decisions) -> PlanProgram:
    """Build the program of a configuration.

    Raises:
        InconsistentRequest: decisions and request contradict each other.
        UnsupportedField: the request or the decisions use a knob that is not modelled.
    """
    _require_matching_batch(request, decisions)
    workload = request.workload.model_copy(
        update={"micro_batch": decisions.micro_batch, "precision": precision_of(decisions)}
    )
    planned = request.model_copy(update={"workload": workload})
    refuse_unmodelled(planned)
    costs = CostModel.of(planned, decisions.mesh)
    parts = partition_of(request.model, decisions)
    shards = local_shards(parts, decisions.mesh.shard)
    inputs = step_inputs(
        parts,
        workload,
        shard=decisions.mesh.shard,
        optimizer_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in shards),
        optimizer_transient_bytes=costs.optimizer_transient_bytes(shards),
    )
    program = build_program(inputs, knobs_of(decisions, parts), costs)
    require_exact(
        program,
        costs.sources(),
        num_micro_batches=decisions.num_micro_batches,
        optimizer_ns=costs.optimizer_ns(shards),
    )
    return PlanProgram(program=program, partition=parts, costs=costs)


def predict(request: PlanRequest, decisions: Decisions) -> Predictions:
    """Step time and memory of a configuration; errors as `program_of`."""
    built = program_of(request, decisions)
    run = replay(built.program)
    return predictions_of(request, decisions, built, run)


def predictions_of(request: PlanRequest, decisions: Decisions, built: PlanProgram, run: Replay) -> Predictions:
    """State a replay as predictions of one optimizer step."""
    costs = built.costs
    num = decisions.num_micro_batches
    optimizer_ns = costs.optimizer_ns(local_shards(built.partition, decisions.mesh.shard))
    step_ns = num * run.micro_batch_ns + optimizer_ns
    tokens = request.workload.global_batch * request.workload.sequence
    seconds = step_ns / 1e9
    return Predictions(
        step_time_ns=step_ns,
        breakdown=_breakdown(run, num, optimizer_ns),
        peak=peak_of(run),
        budget=costs.budget,
        tokens_per_s=round(tokens / seconds, 3) if seconds else 0.0,
        model_flops_utilization=(
            round(num * costs.model_flops() / (seconds * costs.peak_flops_per_s), 6) if seconds else 0.0
        ),
        num_all_gathers=run.count(OperationKind.ALL_GATHER),
        num_reduce_scatters=run.count(OperationKind.REDUCE_SCATTER),
        num_all_reduces=run.count(OperationKind.ALL_REDUCE),
        sources=costs.sources(),
    )


def peak_of(run: Replay) -> MemoryPeak:
    """Memory of a replay at its worst moment."""
    return MemoryPeak(
        pools_bytes={pool.value: size for pool, size in run.pools_bytes.items() if size},
        reserved_bytes=run.reserved_bytes,
        allocated_bytes=run.peak.total_bytes,
        by_category_bytes=run.peak.by_category_bytes,
        moment=run.peak.moment,
    )


def _breakdown(run: Replay, num: int, optimizer_ns: int) -> StepBreakdown:
    parts = dict.fromkeys(_EXPOSED.values(), 0)
    for stall in run.stalls:
        parts[_EXPOSED.get(stall.cause, "exposed_launch_ns")] += stall.duration_ns
    idle = sum(parts.values())
    recompute = run.busy_ns(OperationKind.RECOMPUTE)
    copies = run.busy_ns(OperationKind.COPY_OUT) + run.busy_ns(OperationKind.CHUNK_CAT)
    compute = run.micro_batch_ns - idle - recompute - copies
    return StepBreakdown(
        compute_ns=num * compute,
        recompute_ns=num * recompute,
        copy_ns=num * copies,
        optimizer_ns=optimizer_ns,
        total_ns=num * run.micro_batch_ns + optimizer_ns,
        **{name: num * value for name, value in parts.items()},
    )


def _require_matching_batch(request: PlanRequest, decisions: Decisions) -> None:
    world = decisions.mesh.num_ranks
    if world != request.cluster.num_devices:
        raise InconsistentRequest(
            f"decisions.mesh has {world} ranks but cluster {request.cluster.name!r} has "
            f"{request.cluster.num_devices} devices"
        )
    covered = decisions.micro_batch * decisions.num_micro_batches * world
    if covered != request.workload.global_batch:
        raise InconsistentRequest(
            f"micro_batch {decisions.micro_batch} x num_micro_batches {decisions.num_micro_batches} x "
            f"{world} ranks = {covered} sequences, but workload.global_batch is {request.workload.global_batch}"
        )
