"""The hooks of a unit's modules: one `UnitHooks` stands for one `FSDPState` (torch 2.13)."""

from collections.abc import Callable, Mapping

from planner.check.comm import CommContext, TrainingState
from planner.check.group import Group
from planner.check.machine import Stream
from planner.check.units import Unit


class UnitHooks:
    """A unit with the group of its parameters, if it has any, and the groups that it prefetches."""

    def __init__(self, unit: Unit, groups: Mapping[str, Group], comm: CommContext) -> None:
        self.unit = unit
        self.group = groups.get(unit.name)
        self._comm = comm
        self._state = TrainingState.IDLE
        plan = unit.plan
        self._forward_targets = [groups[name].gathering for name in plan.forward_prefetch if name in groups]
        self._backward_targets = [groups[name].gathering for name in plan.backward_prefetch if name in groups]

    def pre_forward(self) -> None:
        """Before the first call of a pass, in forward or in a recomputation."""
        if self._state is TrainingState.PRE_BACKWARD:
            if self.group:
                self.group.gather_again()
            return
        self._state = TrainingState.FORWARD
        self._begin_forward()
        if self.group:
            self.group.pre_forward()
        for target in self._forward_targets:
            target.unshard()

    def _begin_forward(self) -> None:
        """The unit that is entered first lets the gather streams wait for compute, idle before the root."""
        if self._comm.forward_root is not None:
            return
        self._comm.forward_root = self
        if not self.unit.is_root:
            self._comm.machine.wait_stream(Stream.COPY_IN, Stream.COMPUTE)
            self._comm.machine.wait_stream(Stream.GATHER, Stream.COMPUTE)

    def post_forward(self, held_bytes: int = 0, cast_output: Callable[[], None] = lambda: None) -> None:
        """After the last call of a pass, in forward or in a recomputation.

        The caller of the module holds `held_bytes` until the hook is over. A local variable of FSDP2's method holds
        the deferred buffer until the output of the root is cast.
        """
        if self._state is TrainingState.PRE_BACKWARD:
            return
        if self.group:
            self.group.post_forward(held_bytes)
        self._state = TrainingState.IDLE
        cast_output()
        if self._comm.forward_root is self:
            self._comm.release_deferred()
            self._comm.forward_root = None

    def pre_backward(self) -> None:
        """Before the backward of the last call of a pass."""
        self._state = TrainingState.PRE_BACKWARD
        if self.group:
            self.group.pre_backward(prefetches_implicitly=not self.unit.plan.backward_prefetch)
        for target in self._backward_targets:
            target.unshard()

    def post_backward(self) -> None:
        """After the backward of the first call of a pass."""
        if self.group:
            self.group.post_backward()

    def finish_backward(self) -> None:
        """The unit's part of the final callback."""
        if self.group:
            self.group.finish_backward()
        self._state = TrainingState.IDLE
