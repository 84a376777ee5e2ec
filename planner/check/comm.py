"""What the groups of a model share: `FSDPCommContext` of torch 2.13 and the state of the micro-batch."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from planner.check.costs import CommunicationCosts, StepCosts
from planner.check.in_place import InPlaceBuffers
from planner.check.machine import Link, Machine, Stream
from planner.schema.decisions import Decisions, GradientSync
from planner.schema.plan import MemoryCategory

if TYPE_CHECKING:
    from planner.check.group import Group
    from planner.check.hooks import UnitHooks


class TrainingState(Enum):
    """Which hook ran last."""

    IDLE = auto()
    FORWARD = auto()
    PRE_BACKWARD = auto()
    POST_BACKWARD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGather:
    """An all-gather output that is still held after its copy-out."""

    size_bytes: int
    pool: Stream
    copied_out_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedInput:
    """A reduce input that was not given back yet."""

    size_bytes: int
    reduced_ns: int
    late_bytes: int = 0
    """Sharded gradients that are added when it is given back; their buffer is as large."""


@dataclass(slots=True, kw_only=True)
class CommContext:
    """Shared state of the groups, and how many collectives a micro-batch issued."""

    machine: Machine
    in_place: InPlaceBuffers
    costs: CommunicationCosts
    all_reduce_link: Link
    reduce_scatter_link: Link
    max_input_buffers: int
    gradient_sync: GradientSync
    reduces_unused: bool
    is_last_micro_batch: bool = True
    is_in_backward: bool = False
    forward_root: "UnitHooks | None" = None
    """Unit whose forward began first; it ends what a forward holds back."""
    deferred: HeldGather | None = None
    retained: deque[RetainedInput] = field(default_factory=deque)
    post_forward_order: "list[Group]" = field(default_factory=list)
    last_post_reduce: dict[Stream, int] = field(default_factory=dict)
    times: int = 1
    """For how many micro-batches the one that is walked stands."""
    num_all_gathers: int = 0
    num_reduce_scatters: int = 0
    num_all_reduces: int = 0

    @classmethod
    def of(cls, decisions: Decisions, costs: StepCosts, machine: Machine) -> Self:
        """Knobs of a plan that hold for the whole model."""
        runtime = decisions.runtime
        is_separate = runtime.separate_reduce_scatter_group and costs.concurrent_collectives
        return cls(
            machine=machine,
            in_place=InPlaceBuffers(machine),
            costs=costs,
            all_reduce_link=Link.SHARD if costs.all_reduce_shares_link else Link.REPLICATE,
            reduce_scatter_link=Link.REDUCE if is_separate else Link.SHARD,
            max_input_buffers=runtime.reduce_scatter_max_input_buffers,
            gradient_sync=runtime.gradient_sync,
            reduces_unused=runtime.reduce_scatter_unused_params,
        )

    @property
    def reduces(self) -> bool:
        """Whether this micro-batch reduces gradients at all."""
        return self.is_last_micro_batch or self.gradient_sync is not GradientSync.LAST_MICRO_BATCH

    @property
    def all_reduces(self) -> bool:
        """Whether reductions of this micro-batch go over the replicate axis too, where there is one."""
        return self.is_last_micro_batch or self.gradient_sync is not GradientSync.ALL_REDUCE_ON_LAST

    def begin_micro_batch(self, *, is_last: bool, times: int = 1) -> None:
        """Set the clocks back; what is issued from now on counts so many times, for as many equal micro-batches."""
        assert self.deferred is None, "the root's forward and every recomputation release it"
        self.machine.restart_clocks()
        self.is_last_micro_batch, self.is_in_backward = is_last, False
        self.times = times

    def release_deferred(self) -> None:
        """Let the gather streams wait for the deferred copy-out and free its all-gather output."""
        held = self.wait_for_deferred()
        if held is not None:
            self.machine.free(held.pool, MemoryCategory.GATHER_BUFFERS, held.size_bytes)

    def wait_for_deferred(self) -> "HeldGather | None":
        """Let the gather streams wait for the deferred copy-out, and hand its all-gather output over."""
        held, self.deferred = self.deferred, None
        if held is not None:
            self.wait_gather_streams(held.copied_out_ns)
        return held

    def wait_gather_streams(self, event_ns: int) -> None:
        """Later copy-ins and all-gathers start after the event."""
        self.machine.wait(Stream.COPY_IN, event_ns)
        self.machine.wait(Stream.GATHER, event_ns)

    def release_reduce_inputs(self, *, but: int) -> None:
        """Let compute wait for the oldest reduce-scatters and free their inputs until `but` of them are left."""
        while len(self.retained) > but:
            oldest = self.retained.popleft()
            self.machine.wait(Stream.COMPUTE, oldest.reduced_ns)
            self.machine.free(Stream.COMPUTE, MemoryCategory.REDUCE_BUFFERS, oldest.size_bytes)
            if oldest.late_bytes:
                self.machine.run(Stream.COMPUTE, self.costs.copy_ns(2 * oldest.late_bytes, oldest.late_bytes))
                self.machine.free(Stream.REDUCE, MemoryCategory.GRADIENTS, oldest.late_bytes)

    def wait_for_reductions(self) -> None:
        """Let compute wait for the last operation of each reduction stream."""
        for event_ns in self.last_post_reduce.values():
            self.machine.wait(Stream.COMPUTE, event_ns)
        self.last_post_reduce.clear()
