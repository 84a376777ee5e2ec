"""Peak memory of a step by phase, without a cluster: what a dry run can be compared with."""

from dataclasses import dataclass
from functools import partial

from planner.costs.demands import Demands
from planner.costs.optimizer import optimizer_state_bytes, optimizer_transient_bytes
from planner.program.build import build_program
from planner.program.inputs import (
    accumulating_units,
    each_micro_batch,
    knobs_of,
    local_shards,
    partition_of,
    step_inputs,
    units_of,
)
from planner.program.predicted import launches_only
from planner.schema import Decisions, ModelDescription, Workload
from planner.simulate.host import host_memory
from planner.simulate.memory import MemoryPoint
from planner.simulate.offloaded_state import StateMemory
from planner.simulate.replay import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeaks:
    """Highest allocated bytes on one rank."""

    micro_batch: MemoryPoint
    """Forward and backward: of a micro-batch that finds gradients to add to, where there is one."""
    optimizer: MemoryPoint
    optimizer_state_bytes: int
    """Made by the first optimizer step, and part of all peaks after it."""
    host_bytes: int
    """Most bytes in host memory: units and activations that are offloaded. The optimizer's counts of steps are not
    among them, nor is optimizer state of units on the device, which FSDP2 has no part in."""

    @property
    def first_micro_batch_bytes(self) -> int:
        """Forward and backward of the first step: what a profile of it shows."""
        return self.micro_batch.total_bytes - self.optimizer_state_bytes

    @property
    def first_step_bytes(self) -> int:
        """All of the first step; its optimizer step is as high as any."""
        return max(self.first_micro_batch_bytes, self.optimizer.total_bytes)

    @property
    def step_bytes(self) -> int:
        """The second step and all after it."""
        return max(self.micro_batch.total_bytes, self.optimizer.total_bytes)


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
    workload = decisions.decided(workload)
    parts = partition_of(model, decisions)
    knobs = knobs_of(decisions, parts)
    units = units_of(parts, knobs, on_host=False)
    shards = local_shards(parts, knobs.meshes, units)
    inputs = step_inputs(
        parts,
        workload,
        meshes=knobs.meshes,
        optimizer_bytes=sum(optimizer_state_bytes(workload, *shard) for shard in shards),
        optimizer_transient_bytes=optimizer_transient_bytes(
            workload, shards, decisions.mesh.shard, Demands.of(decisions).owner_ranks
        ),
        decisions=decisions,
    )
    places = each_micro_batch(knobs, decisions.num_micro_batches)
    programs = [build_program(inputs, place, launches_only(parts)) for place, _ in places]
    points = [replay(program, points=True).points for program in programs]
    *within, optimizer = [point for of_one in points for point in of_one]
    return PhasePeaks(
        micro_batch=max(within, key=lambda point: point.total_bytes),
        optimizer=optimizer,
        optimizer_state_bytes=inputs.optimizer_bytes,
        host_bytes=host_memory(
            inputs,
            knobs,
            programs[-1],
            accumulating_units(places),
            state_bytes=partial(optimizer_state_bytes, workload),
            transient_bytes=lambda shards: optimizer_transient_bytes(workload, shards, decisions.mesh.shard),
            off_device=StateMemory(),
        ).total_bytes,
    )
