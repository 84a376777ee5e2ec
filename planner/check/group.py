"""The hooks of FSDP2 on virtual clocks: one `Group` stands for one `FSDPParamGroup` (torch 2.13)."""

from planner.check.comm import CommContext, TrainingState
from planner.check.gathering import Gathering
from planner.check.gradients import Gradients
from planner.check.reduction import Reduction
from planner.check.units import Unit


class Group:
    """Parameters that are gathered and reduced together."""

    def __init__(self, unit: Unit, comm: CommContext) -> None:
        self.unit = unit
        self.state = TrainingState.IDLE
        self.gathering = Gathering(unit, comm)
        self.gradients = Gradients(unit, comm)
        self.reduction = Reduction(unit, comm)
        self._comm = comm
        self._forward_indices: list[int] = []

    @property
    def is_gathered(self) -> bool:
        """Whether the group occupies memory for whole parameters, or is about to."""
        return self.gathering.is_begun

    def begin_micro_batch(self) -> None:
        """Before the forward of the root."""
        self.gathering.begin_micro_batch()
        self.gradients.begin_micro_batch()

    def pre_forward(self) -> None:
        """Before the first call of the pass."""
        self.state = TrainingState.FORWARD
        self.gathering.unshard()
        self.gathering.wait(is_forward=True)

    def post_forward(self, held_bytes: int) -> None:
        """After the last call of the pass; a recomputation neither reshards nor counts as a use."""
        if not self._comm.is_in_backward:
            self.gathering.reshard(after_forward=True, held_bytes=held_bytes)
            self._forward_indices.append(len(self._comm.post_forward_order))
            self._comm.post_forward_order.append(self)
        self.state = TrainingState.IDLE

    def pre_backward(self, *, prefetches_implicitly: bool) -> None:
        """Before the backward of the last call of the pass."""
        if self.state is TrainingState.PRE_BACKWARD:
            return
        self.state = TrainingState.PRE_BACKWARD
        self.gathering.unshard()
        self.gathering.wait(is_forward=False)
        if prefetches_implicitly and self._forward_indices:
            index = self._forward_indices.pop()
            if index > 0:
                self._comm.post_forward_order[index - 1].gathering.unshard()

    def gather_again(self) -> None:
        """In a recomputation after pre-backward; the post-backward of a later pass may have resharded the group."""
        if not self.gathering.is_whole:
            self.gathering.unshard(on_compute=self.state is not TrainingState.PRE_BACKWARD)
            self.gathering.wait(is_forward=False)

    def post_backward(self) -> None:
        """After the backward of the first call of the pass: reshard, then reduce what has a gradient."""
        comm = self._comm
        self.state = TrainingState.POST_BACKWARD
        self.gradients.accumulate()
        taken = self.gradients.take(fills_unused=self.gathering.was_whole) if comm.reduces else []
        if self.unit.plan.reshard_after_backward or comm.is_last_micro_batch:
            self.gathering.reshard(after_forward=False)
        if not comm.reduces:
            self.gradients.keep_in_reduce_dtype()
            return
        comm.release_reduce_inputs(but=comm.max_input_buffers - 1)
        if taken:
            self.reduction.run(taken)

    def finish_backward(self) -> None:
        """The group's part of the final callback, for a group whose inputs needed no gradient too."""
        if self.state is not TrainingState.POST_BACKWARD:
            self.post_backward()
        self.state = TrainingState.IDLE
        self._comm.wait_for_reductions()
        self.reduction.finalize()
        self.gathering.finalize()
        self._forward_indices.clear()
