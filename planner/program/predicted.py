"""The outline that a set of decisions should have: neither cluster nor durations are needed for it."""

from dataclasses import dataclass, replace

from planner.program.build import build_program
from planner.program.events import Program
from planner.program.inputs import knobs_of, partition_of, precision_of, step_inputs
from planner.program.outline import Outline, outline
from planner.program.step import Knobs, StepInputs
from planner.program.units import Partition
from planner.schema import Decisions, ModelDescription, Workload


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
        precision=precision_of(decisions),
    )
    inputs = step_inputs(
        parts, workload, shard=decisions.mesh.shard, optimizer_bytes=0, optimizer_transient_bytes=0
    )
    return outline(step_programs(inputs, knobs_of(decisions, parts), num=decisions.num_micro_batches), parts)


def step_programs(inputs: StepInputs, knobs: Knobs, *, num: int) -> list[Program]:
    """Programs of the micro-batches of a step, without durations; the first finds no gradients to add to."""
    durations = _LaunchesOnly(_num_kernels(inputs.partition))
    first = build_program(inputs, replace(knobs, accumulates=False), durations)
    if num == 1:
        return [first]
    return [first] + [build_program(inputs, replace(knobs, accumulates=True), durations)] * (num - 1)


def _num_kernels(parts: Partition) -> dict[str, tuple[int, int, int]]:
    return {
        name: (
            sum(region.forward.num_kernels for region in kind.regions),
            sum(region.backward.num_kernels for region in kind.regions),
            sum(region.recompute.num_kernels for region in kind.regions),
        )
        for name, kind in parts.model.kinds.items()
    }


@dataclass(frozen=True, slots=True)
class _LaunchesOnly:
    """Durations that are all 0; what launches kernels is still an operation."""

    num_kernels: dict[str, tuple[int, int, int]]
    launch_ns: int = 0
    all_reduce_shares_link: bool = False

    def forward_ns(self, kind: str) -> int:
        return 0

    def backward_ns(self, kind: str) -> int:
        return 0

    def recompute_ns(self, kind: str) -> int:
        return 0

    def forward_kernels(self, kind: str) -> int:
        return self.num_kernels[kind][0]

    def backward_kernels(self, kind: str) -> int:
        return self.num_kernels[kind][1]

    def recompute_kernels(self, kind: str) -> int:
        return self.num_kernels[kind][2]

    def all_gather_ns(self, size_bytes: int) -> int:
        return 0

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        return 0

    def all_reduce_ns(self, size_bytes: int) -> int:
        return 0

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        return 0
