"""Hand-written models of equal blocks, and what is predicted for a step of them.

Tests here repeat published numbers. Each names its source: a paper, torch's own sources, figures measured on the
real FSDP2 code (docs/fsdp2.md), or one of seventeen cases that people reported while tuning FSDP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.program.events import Phase
from planner.program.outline import Outline, OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import (
    Decisions,
    MemoryCategory,
    ModelDescription,
    PlanRequest,
    Precision,
    RuntimeKnobs,
    UnitPlan,
)
from planner.simulate.peaks import PhasePeaks, predicted_peaks
from planner.simulate.predict import program_of
from planner.simulate.replay import MemoryPoint, replay
from tests.planner.factories import CallSpec, ClusterSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

GIB = 2**30
BLOCK_BYTES = 64 * 4 * 4
"""Float32 bytes of a block that divides evenly over 64 ranks and fewer."""
EVEN = CallSpec(shapes=((64, 4),), forward_live=[0], backward_live=[(0, 0), (0, 1)], full_saved=0)
"""A block without activations: its bytes are those of parameters and gradients alone."""
ROOT_PART = CallSpec(shapes=((64, 4),), input_requires_grad=False)


@dataclass(frozen=True)
class Step:
    """A configuration and its prediction."""

    request: PlanRequest
    decisions: Decisions

    @cached_property
    def outline(self) -> Outline:
        """Operations of all micro-batches of a step."""
        return predicted_outline(self.request.model, self.decisions, sequence=self.request.workload.sequence)

    @cached_property
    def peaks(self) -> PhasePeaks:
        """Allocated peaks of the micro-batches and of the optimizer step."""
        return predicted_peaks(self.request.model, self.decisions, self.request.workload)

    def count(self, kind: OutlineKind, *units: str) -> int:
        """Operations of a kind in the whole step, of some units or of all."""
        return sum(one.kind is kind and (not units or one.unit in units) for one in self.outline)

    @property
    def collectives(self) -> tuple[int, int]:
        """All-gathers and reduce-scatters of the step."""
        return self.count(OutlineKind.ALL_GATHER), self.count(OutlineKind.REDUCE_SCATTER)

    def sizes(self, kind: OutlineKind, unit: str) -> set[int]:
        """Bytes of a unit's operations of a kind."""
        return {one.size_bytes for one in self.outline if (one.kind, one.unit) == (kind, unit)}

    @cached_property
    def points(self) -> dict[Phase, list[MemoryPoint]]:
        """Every allocation of the last micro-batch, split where its first backward begins."""
        program = program_of(self.request, self.decisions).program
        begins = next(
            index for index, event in enumerate(program.events) if getattr(event, "phase", None) is Phase.BACKWARD
        )
        *within, _ = replay(program, points=True).points  # the last is the optimizer step
        return {
            Phase.FORWARD: [point for point in within if point.event < begins],
            Phase.BACKWARD: [point for point in within if point.event >= begins],
        }

    def most(self, phase: Phase, *categories: MemoryCategory) -> int:
        """Most bytes of some categories together in a phase."""
        return max(
            sum(point.by_category_bytes.get(category, 0) for category in categories) for point in self.points[phase]
        )


def block_model(num_blocks: int, block: CallSpec = EVEN, root: CallSpec | None = ROOT_PART) -> ModelDescription:
    """Equal blocks after an embedding that belongs to the root, or no root parameters at all."""
    return tiny_model(num_blocks, block=block, embedding=root, norm=None, head=None, loss=None)


def step(
    model: ModelDescription,
    ranks: int,
    *,
    precision: Precision | None = None,
    num_micro_batches: int = 1,
    memory_bytes: int = 10**15,
    replicate: int = 1,
    reshard: bool | int | None = None,
    root_reshard: bool | int | None = None,
    reshard_after_backward: bool = True,
    prefetch: int = 0,
    checkpoint: Sequence[str] = (),
    extra_units: Sequence[UnitPlan] = (),
    runtime: RuntimeKnobs | None = None,
) -> Step:
    """A step on equal ranks; float32 throughout unless a precision is given."""
    cluster = tiny_cluster(ranks, spec=ClusterSpec(memory_bytes=memory_bytes))
    request = tiny_request(
        model, cluster, num_micro_batches=num_micro_batches, **({"precision": precision} if precision else {})
    )
    decisions = tiny_decisions(
        request,
        replicate=replicate,
        reshard=reshard,
        root_reshard=root_reshard,
        forward_prefetch=prefetch,
        backward_prefetch=prefetch,
        checkpoint=checkpoint,
        extra_units=extra_units,
        runtime=runtime,
    )
    if not reshard_after_backward:
        units = [unit.model_copy(update={"reshard_after_backward": False}) for unit in decisions.units]
        decisions = decisions.model_copy(update={"units": tuple(units)})
    return Step(request=request, decisions=decisions)
