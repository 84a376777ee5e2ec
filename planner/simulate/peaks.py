"""Peak memory of a step by phase, without a cluster: what a dry run can be compared with."""

from dataclasses import dataclass

from planner.costs.optimizer import optimizer_state_bytes, optimizer_transient_bytes
from planner.program.inputs import knobs_of, local_shards, partition_of, precision_of, step_inputs
from planner.program.predicted import step_programs
from planner.schema import Decisions, ModelDescription, Workload
from planner.simulate.replay import MemoryPoint, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeaks:
    """Highest allocated bytes on one rank."""

    micro_batch: MemoryPoint
    """Forward and backward: of a micro-batch that finds gradients to add to, where there is one."""
    optimizer: MemoryPoint


def predicted_peaks(model: ModelDescription, decisions: Decisions, workload: Workload) -> PhasePeaks:
    """Peaks of a configuration.

    Args:
        model: its description.
        decisions: mesh, units, policies; their micro-batch and precision hold.
        workload: sequence and optimizer.

    Raises:
        InconsistentRequest: the documents contradict each other.
        UnsupportedField: the decisions use a knob that is not modelled.
    """
    parts = partition_of(model, decisions)
    shards = local_shards(parts, decisions.mesh.shard)
    inputs = step_inputs(
        parts,
        workload.model_copy(update={"micro_batch": decisions.micro_batch, "precision": precision_of(decisions)}),
        shard=decisions.mesh.shard,
        optimizer_bytes=sum(optimizer_state_bytes(workload, *shard) for shard in shards),
        optimizer_transient_bytes=optimizer_transient_bytes(workload, shards),
    )
    programs = step_programs(inputs, knobs_of(decisions, parts), num=decisions.num_micro_batches)
    *micro_batch, optimizer = replay(programs[-1], points=True).points
    return PhasePeaks(micro_batch=max(micro_batch, key=lambda point: point.total_bytes), optimizer=optimizer)
