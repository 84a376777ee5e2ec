"""The outline that a set of decisions should have: neither cluster nor durations are needed for it."""

from dataclasses import dataclass

from planner.program.build import build_program
from planner.program.events import Program
from planner.program.inputs import each_micro_batch, knobs_of, meshes_of, partition_of, step_inputs
from planner.program.outline import Outline, outline
from planner.program.step import Collectives, Durations, Knobs, StepInputs
from planner.program.units import Partition
from planner.schema import CallKind, Decisions, HostRuns, MeshPlan, ModelDescription, Workload


def predicted_outline(model: ModelDescription, decisions: Decisions, *, sequence: int) -> Outline:
    """Outline of all micro-batches of one optimizer step.

    Raises:
        InconsistentRequest: model and decisions contradict each other.
        UnsupportedField: the decisions use a knob that is not modelled.
    """
    parts = partition_of(model, decisions)
    workload = Workload(
        micro_batch=decisions.micro_batch,
        sequence=sequence,
        global_batch=decisions.micro_batch * decisions.num_micro_batches * decisions.mesh.num_ranks,
        precision=decisions.precision,
    )
    inputs = step_inputs(
        parts,
        workload,
        meshes=meshes_of(decisions, parts),
        optimizer_bytes=0,
        optimizer_transient_bytes=0,
        decisions=decisions,
    )
    return outline(step_programs(inputs, knobs_of(decisions, parts), num=decisions.num_micro_batches), parts)


def step_programs(inputs: StepInputs, knobs: Knobs, *, num: int) -> list[Program]:
    """Programs of the micro-batches of a step, without durations."""
    durations = launches_only(inputs.partition)
    return [
        program
        for place, count in each_micro_batch(knobs, num)
        for program in [build_program(inputs, place, durations)] * count
    ]


def launches_only(parts: Partition) -> Durations:
    """Durations that are all 0; what launches kernels is still an operation."""
    return _LaunchesOnly(parts)


@dataclass(frozen=True, slots=True)
class _LaunchesOnly:
    """Durations that are all 0; what launches kernels is still an operation."""

    parts: Partition
    launch_ns: int = 0
    host_runs: HostRuns = HostRuns.NOTHING
    all_reduce_shares_link: bool = False
    concurrent_collectives: bool = False

    def _kind(self, kind: str) -> CallKind:
        return self.parts.model.kinds[kind]

    def forward_ns(self, kind: str) -> int:
        return 0

    def backward_ns(self, kind: str) -> int:
        return 0

    def recompute_ns(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        return 0

    def forward_kernels(self, kind: str) -> int:
        return sum(region.forward.num_kernels for region in self._kind(kind).regions)

    def backward_kernels(self, kind: str) -> int:
        return sum(region.backward.num_kernels for region in self._kind(kind).regions)

    def recompute_kernels(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        return sum(work.num_kernels for work in self._kind(kind).recomputation(saved_ops))

    def collectives(self, mesh: MeshPlan) -> Collectives:
        return self

    def all_gather_ns(self, size_bytes: int, ranks: int | None = None) -> int:
        return 0

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        return 0

    def all_reduce_ns(self, size_bytes: int) -> int:
        return 0

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        return 0

    def host_to_device_ns(self, size_bytes: int) -> int:
        return 0

    def device_to_host_ns(self, size_bytes: int) -> int:
        return 0
