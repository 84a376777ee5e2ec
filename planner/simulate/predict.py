"""Predictions for a configuration: build its program, replay it, add up one optimizer step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.costs import CostModel
from planner.costs.optimizer import require_adam
from planner.extent import require_exact
from planner.program.build import build_program
from planner.program.events import OperationKind, Program, Stream
from planner.program.inputs import (
    accumulating_units,
    knobs_of,
    local_shards,
    micro_batches,
    partition_of,
    step_inputs,
    units_of,
)
from planner.program.step import Knobs, StepInputs
from planner.program.units import Partition
from planner.refuse import refuse_missing_knobs, refuse_unmodelled
from planner.schema import (
    Decisions,
    InconsistentRequest,
    MemoryPeak,
    PlanRequest,
    Predictions,
    StepBreakdown,
)
from planner.simulate.host import host_memory, state_memory
from planner.simulate.muon import require_sound_muon
from planner.simulate.offloaded_state import state_step_ns, tier_off_device, units_off_device
from planner.simulate.replay import Replay, replay
from planner.simulate.segments import Tensors, segments_of
from planner.simulate.tensors import tensors_of

_COPIES = (
    OperationKind.COPY_OUT,
    OperationKind.RESHARD,
    OperationKind.ACCUMULATE,
    OperationKind.CHUNK_CAT,
)
"""Copies that the compute stream runs for FSDP2."""
_EXPOSED = {
    OperationKind.HOST_TO_DEVICE: "exposed_host_copy_ns",
    OperationKind.ACTIVATION_IN: "exposed_host_copy_ns",
    OperationKind.ACTIVATION_OUT: "exposed_host_copy_ns",
    OperationKind.COPY_IN: "exposed_all_gather_ns",
    OperationKind.ALL_GATHER: "exposed_all_gather_ns",
    OperationKind.REDUCE_SCATTER: "exposed_reduce_scatter_ns",
    OperationKind.LOCAL_REDUCE: "exposed_reduce_scatter_ns",
    OperationKind.POST_REDUCE: "exposed_reduce_scatter_ns",
    OperationKind.DIVIDE: "exposed_reduce_scatter_ns",
    OperationKind.OFFLOAD: "exposed_host_copy_ns",
    OperationKind.ALL_REDUCE: "exposed_all_reduce_ns",
    None: "exposed_launch_ns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgram:
    """The micro-batches of a configuration, with what they were built from."""

    programs: tuple[tuple[Program, int], ...]
    """Micro-batches that differ, in order, each with how many there are in a step."""
    inputs: StepInputs
    knobs: Knobs
    costs: CostModel
    optimizer_ns: int
    """Optimizer step, on the device and then on the host."""
    cpu_optimizer_ns: int
    """Its part on the host."""
    accumulating: frozenset[int]
    """Units of which some micro-batch adds to sharded gradients of earlier ones."""

    @property
    def partition(self) -> Partition:
        """Units and calls."""
        return self.inputs.partition

    @property
    def program(self) -> Program:
        """The last micro-batch."""
        return self.programs[-1][0]


def program_of(request: PlanRequest, decisions: Decisions) -> PlanProgram:
    """Build the programs of a configuration.

    Raises:
        InconsistentRequest: decisions and request contradict each other.
        UnsupportedField: the request or the decisions use a knob that is not modelled.
    """
    _require_matching_batch(request, decisions)
    workload = decisions.decided(request.workload)
    parts = partition_of(request.model, decisions)
    planned = request.model_copy(update={"workload": workload, "model": parts.model})
    refuse_unmodelled(planned)
    refuse_missing_knobs(decisions, request.model, workload.torch_version)
    require_sound_muon(planned, decisions)
    costs = CostModel.of_plan(planned, decisions)
    knobs = knobs_of(decisions, parts)
    on_device, on_host = (
        local_shards(parts, knobs.meshes, units_of(parts, knobs, on_host=tier)) for tier in (False, True)
    )
    inputs = step_inputs(
        parts,
        workload,
        meshes=knobs.meshes,
        optimizer_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in on_device),
        optimizer_transient_bytes=costs.optimizer_transient_bytes(on_device),
        decisions=decisions,
    )
    off_device, tier = units_off_device(parts, knobs), tier_off_device(knobs)
    require_adam(workload, off_device)
    state_ns = state_step_ns(off_device, tier, costs)
    cpu_optimizer_ns = costs.cpu_optimizer_ns(on_host)
    optimizer_ns = max(costs.optimizer_ns(on_device), state_ns) + cpu_optimizer_ns
    places = micro_batches(knobs, decisions.num_micro_batches)
    programs = tuple((build_program(inputs, place, costs), num) for place, num in places)
    for program, _ in programs:
        require_exact(
            program,
            costs.sources(),
            num_micro_batches=decisions.num_micro_batches,
            optimizer_ns=optimizer_ns,
        )
    return PlanProgram(
        programs=programs,
        inputs=inputs,
        knobs=knobs,
        costs=costs,
        optimizer_ns=optimizer_ns,
        cpu_optimizer_ns=cpu_optimizer_ns,
        accumulating=accumulating_units(places),
    )


def predict(request: PlanRequest, decisions: Decisions) -> Predictions:
    """Step time and memory of a configuration; errors as `program_of`."""
    built = program_of(request, decisions)
    return predictions_of(request, decisions, built, [replay(program) for program, _ in built.programs])


def predictions_of(
    request: PlanRequest, decisions: Decisions, built: PlanProgram, runs: Sequence[Replay]
) -> Predictions:
    """State the replays of a step's micro-batches as predictions of one optimizer step."""
    costs = built.costs
    counted = [(run, num) for run, (_, num) in zip(runs, built.programs, strict=True)]
    step_ns = sum(num * run.micro_batch_ns for run, num in counted) + built.optimizer_ns
    tokens = request.workload.global_batch * request.workload.sequence
    seconds = step_ns / 1e9
    flops = decisions.num_micro_batches * costs.model_flops()
    off_device = state_memory(built.partition, built.knobs, costs.optimizer_transient_bytes)
    host = host_memory(
        built.inputs,
        built.knobs,
        built.program,
        built.accumulating,
        state_bytes=costs.optimizer_state_bytes,
        transient_bytes=costs.optimizer_transient_bytes,
        off_device=off_device,
    )
    return Predictions(
        step_time_ns=step_ns,
        breakdown=_breakdown(counted, built.optimizer_ns),
        peak=memory_peak(built, runs, segments=True),
        budget=costs.budget,
        host_bytes=host.total_bytes,
        host_reserved_bytes=host.reserved_bytes,
        host_budget_bytes=costs.host_budget_bytes if host.total_bytes else 0,
        nvme_bytes=off_device.nvme_bytes,
        tokens_per_s=round(tokens / seconds, 3) if seconds else 0.0,
        model_flops_utilization=round(flops / (seconds * costs.peak_flops_per_s), 6) if seconds else 0.0,
        num_all_gathers=sum(num * run.count(OperationKind.ALL_GATHER) for run, num in counted),
        num_reduce_scatters=sum(num * run.count(OperationKind.REDUCE_SCATTER) for run, num in counted),
        num_all_reduces=sum(num * run.count(OperationKind.ALL_REDUCE) for run, num in counted),
        sources=costs.sources(),
    )


def memory_peak(built: PlanProgram, runs: Sequence[Replay], *, segments: bool = False) -> MemoryPeak:
    """Memory at its worst moment: each pool's own, and that of all together.

    Args:
        built: the micro-batches of a step.
        runs: their replays.
        segments: also work out what the caching allocator holds, which takes longer than a replay.
    """
    pools = largest_of(run.pools_bytes for run in runs)
    worst = max((run.peak for run in runs), key=lambda peak: peak.total_bytes)
    held = largest_of(segments_of(program, _tensors(built)) for program, _ in built.programs) if segments else {}
    micro_batch = max(run.peaks.micro_batch_bytes for run in runs)
    return MemoryPeak(
        pools_bytes=pools,
        reserved_bytes=sum(pools.values()),
        allocated_bytes=worst.total_bytes,
        by_category_bytes=worst.by_category_bytes,
        optimizer_step_bytes=runs[-1].peaks.optimizer_bytes,
        first_micro_batch_bytes=micro_batch - built.inputs.optimizer_bytes,
        segments_by_pool_bytes=held,
        segments_bytes=sum(held.values()),
        moment=worst.moment,
    )


def largest_of(pools: Iterable[Mapping[Stream, int]]) -> dict[str, int]:
    """The most of each pool over several micro-batches; pools that none uses are left out."""
    found: dict[str, int] = {}
    for sizes in pools:
        for pool, size in sizes.items():
            found[pool.value] = max(size, found.get(pool.value, 0))
    return {pool: size for pool, size in found.items() if size}


def _tensors(built: PlanProgram) -> Tensors:
    units = units_of(built.partition, built.knobs, on_host=False)
    shards = local_shards(built.partition, built.knobs.meshes, units)
    return tensors_of(built.inputs, built.knobs, [built.costs.optimizer_state_bytes(*shard) for shard in shards])


def exposed_part(cause: OperationKind | None) -> str:
    """Field of `StepBreakdown` that a stall of the compute stream counts for; None is the CPU."""
    return _EXPOSED.get(cause, "exposed_launch_ns")


def _breakdown(counted: Sequence[tuple[Replay, int]], optimizer_ns: int) -> StepBreakdown:
    parts = dict.fromkeys(_EXPOSED.values(), 0)
    recompute = copies = total = 0
    for run, num in counted:
        for stall in run.stalls:
            parts[exposed_part(stall.cause)] += num * stall.duration_ns
        recompute += num * run.busy_ns(OperationKind.RECOMPUTE)
        copies += num * sum(run.busy_ns(kind) for kind in _COPIES)
        total += num * run.micro_batch_ns
    return StepBreakdown(
        compute_ns=total - sum(parts.values()) - recompute - copies,
        recompute_ns=recompute,
        copy_ns=copies,
        optimizer_ns=optimizer_ns,
        total_ns=total + optimizer_ns,
        **parts,
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
