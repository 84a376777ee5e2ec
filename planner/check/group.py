"""The hooks of FSDP2 on virtual clocks: one `Group` stands for one `FSDPParamGroup` (torch 2.13)."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from planner.check.machine import Link, Machine, Stream
from planner.check.units import ShardedParameter, Unit
from planner.schema.plan import MemoryCategory, MeshPlan


class CollectiveCosts(Protocol):
    """Durations that the hooks need, in nanoseconds."""

    def all_gather_ns(self, size_bytes: int, /) -> int:
        """All-gather into a full buffer of this size over the shard axis."""

    def reduce_scatter_ns(self, size_bytes: int, /) -> int:
        """Reduce-scatter of a full buffer of this size over the shard axis."""

    def all_reduce_ns(self, size_bytes: int, /) -> int:
        """All-reduce of a buffer of this size over the replicate axis."""

    def copy_ns(self, read_bytes: int, write_bytes: int, /) -> int:
        """Copy on the device."""


class TrainingState(Enum):
    """Which hook ran last."""

    IDLE = auto()
    FORWARD = auto()
    PRE_BACKWARD = auto()
    POST_BACKWARD = auto()


@dataclass(slots=True, kw_only=True)
class CommContext:
    """What the groups share, and how many collectives they issued."""

    machine: Machine
    costs: CollectiveCosts
    mesh: MeshPlan
    all_reduce_link: Link
    max_input_buffers: int
    is_accumulating: bool
    deferred: "tuple[Group, int] | None" = None
    """Group whose all-gather output is still held, and the end of its copy-out."""
    retained: deque[tuple[int, int]] = field(default_factory=deque)
    """(bytes, end of its reduce-scatter) of each reduce input not yet given back."""
    post_forward_order: "list[Group]" = field(default_factory=list)
    last_post_reduce: dict[Stream, int] = field(default_factory=dict)
    num_all_gathers: int = 0
    num_reduce_scatters: int = 0
    num_all_reduces: int = 0

    def release_deferred(self) -> None:
        """Let the gather streams wait for the deferred copy-out and free its all-gather output."""
        if self.deferred is None:
            return
        group, copied_out = self.deferred
        self.wait_gather_streams(copied_out)
        group.free_gather_output()
        self.deferred = None

    def wait_gather_streams(self, event_ns: int) -> None:
        """Later copy-ins and all-gathers start after the event."""
        self.machine.wait(Stream.COPY_IN, event_ns)
        self.machine.wait(Stream.GATHER, event_ns)

    def release_oldest_reduce_input(self) -> None:
        """Let compute wait for the oldest reduce-scatter and free its input."""
        size_bytes, reduced = self.retained.popleft()
        self.machine.wait(Stream.COMPUTE, reduced)
        self.machine.free(Stream.COMPUTE, MemoryCategory.REDUCE_BUFFERS, size_bytes)


class Group:
    """Parameters that are gathered and reduced together."""

    def __init__(self, unit: Unit, comm: CommContext, *, is_resharded_after_forward: bool) -> None:
        self.unit = unit
        self.state = TrainingState.IDLE
        self.is_unsharded = False
        self.gradients: dict[str, ShardedParameter] = {}
        """Parameters whose full gradient autograd has made."""
        self._comm = comm
        self._machine = comm.machine
        self._reshards = is_resharded_after_forward
        self._pending: int | None = None
        """End of an all-gather that nobody has waited for yet."""
        self._forward_indices: list[int] = []
        self._held_output: tuple[MemoryCategory, int] | None = None
        self._gathered_bytes = comm.mesh.shard * unit.gather_input_bytes

    @property
    def is_gathered(self) -> bool:
        """Whether the group occupies memory for whole parameters, or is about to."""
        return self.is_unsharded or self._pending is not None

    def pre_forward(self) -> None:
        """Before the first call of the pass."""
        self.state = TrainingState.FORWARD
        self.unshard()
        self.wait_for_unshard()

    def post_forward(self) -> None:
        """After the last call of the pass."""
        if self._reshards:
            self.reshard()
        self._forward_indices.append(len(self._comm.post_forward_order))
        self._comm.post_forward_order.append(self)
        self.state = TrainingState.IDLE

    def pre_backward(self, *, prefetches_implicitly: bool) -> None:
        """Before the backward of the last call of the pass."""
        self.state = TrainingState.PRE_BACKWARD
        self.unshard()
        self.wait_for_unshard()
        if prefetches_implicitly and self._forward_indices:
            index = self._forward_indices.pop()
            if index > 0:
                self._comm.post_forward_order[index - 1].unshard()

    def unshard(self) -> None:
        """Issue copy-in and all-gather unless the parameters are whole or on their way."""
        if self._pending is not None or self.is_unsharded:
            return
        if self._comm.mesh.shard == 1:
            self._pending = 0
            return
        machine, costs, share = self._machine, self._comm.costs, self.unit.gather_input_bytes
        machine.allocate(Stream.COPY_IN, MemoryCategory.GATHER_BUFFERS, self.unit.cast_bytes)
        machine.allocate(Stream.COPY_IN, MemoryCategory.GATHER_BUFFERS, self._gathered_bytes)
        machine.run(Stream.COPY_IN, costs.copy_ns(share, share))
        machine.free(Stream.COPY_IN, MemoryCategory.GATHER_BUFFERS, self.unit.cast_bytes)
        machine.wait_stream(Stream.GATHER, Stream.COPY_IN)
        duration = costs.all_gather_ns(self._gathered_bytes)
        self._pending = machine.run(Stream.GATHER, duration, link=Link.SHARD)
        self._comm.num_all_gathers += 1

    def wait_for_unshard(self) -> None:
        """Copy the gathered parameters out on the compute stream."""
        if self._pending is None:
            return
        is_forward = self.state is TrainingState.FORWARD
        if is_forward:
            self._comm.release_deferred()
        if self._comm.mesh.shard > 1:
            self._machine.wait(Stream.COMPUTE, self._pending)
        self._allocate_unsharded()
        duration = self._comm.costs.copy_ns(self._gathered_bytes, self._gathered_bytes)
        copied_out = self._machine.run(Stream.COMPUTE, duration)
        self.is_unsharded, self._pending = True, None
        if is_forward and self._comm.mesh.shard > 1:
            self._comm.deferred = (self, copied_out)
        else:
            self._comm.wait_gather_streams(copied_out)
            self.free_gather_output()

    def _allocate_unsharded(self) -> None:
        """Without an all-gather, each parameter is cast alone; a cast lives until the next one is made."""
        previous = 0
        for parameter in self.unit.parameters:
            cast = parameter.cast_bytes if self._comm.mesh.shard == 1 else 0
            self._machine.allocate(Stream.COMPUTE, MemoryCategory.TRANSIENTS, cast)
            self._machine.free(Stream.COMPUTE, MemoryCategory.TRANSIENTS, previous)
            whole = self._comm.mesh.shard * parameter.gather_input_bytes
            self._machine.allocate(Stream.COMPUTE, MemoryCategory.UNSHARDED_PARAMETERS, whole)
            previous = cast
        self._machine.free(Stream.COMPUTE, MemoryCategory.TRANSIENTS, previous)

    def free_gather_output(self) -> None:
        """Drop the all-gather output."""
        if self._comm.mesh.shard > 1:
            self._machine.free(Stream.COPY_IN, MemoryCategory.GATHER_BUFFERS, self._gathered_bytes)

    def reshard(self) -> None:
        """Free the whole parameters."""
        if self.is_unsharded:
            self._machine.free(Stream.COMPUTE, MemoryCategory.UNSHARDED_PARAMETERS, self._gathered_bytes)
            self.is_unsharded = False

    def add_gradient(self, parameter: ShardedParameter) -> None:
        """Autograd has made the full gradient of a parameter."""
        self.gradients[parameter.name] = parameter
        self._machine.allocate(Stream.COMPUTE, MemoryCategory.UNSHARDED_GRADIENTS, parameter.gradient_bytes)

    def post_backward(self) -> None:
        """After the backward of the first call of the pass: reshard, then reduce what has a gradient."""
        self.state = TrainingState.POST_BACKWARD
        self.reshard()
        while len(self._comm.retained) >= self._comm.max_input_buffers:
            self._comm.release_oldest_reduce_input()
        if not self.gradients:
            return
        parameters = tuple(self.gradients.values())
        self.gradients = {}
        input_bytes = self._comm.mesh.shard * sum(parameter.reduce_output_bytes for parameter in parameters)
        self._copy_gradients_in(parameters, input_bytes)
        self._reduce(parameters, input_bytes)

    def _copy_gradients_in(self, parameters: tuple[ShardedParameter, ...], input_bytes: int) -> None:
        machine = self._machine
        gradient_bytes = sum(parameter.gradient_bytes for parameter in parameters)
        machine.allocate(Stream.COMPUTE, MemoryCategory.REDUCE_BUFFERS, input_bytes)
        machine.run(Stream.COMPUTE, self._comm.costs.copy_ns(gradient_bytes, input_bytes))
        machine.free(Stream.COMPUTE, MemoryCategory.UNSHARDED_GRADIENTS, gradient_bytes)
        machine.wait_stream(Stream.REDUCE, Stream.COMPUTE)

    def _reduce(self, parameters: tuple[ShardedParameter, ...], input_bytes: int) -> None:
        machine, comm = self._machine, self._comm
        output_bytes = input_bytes // comm.mesh.shard
        is_cast = any(parameter.reduced is not parameter.storage for parameter in parameters)
        category = MemoryCategory.REDUCE_BUFFERS if is_cast else MemoryCategory.GRADIENTS
        machine.allocate(Stream.REDUCE, category, output_bytes)
        if comm.mesh.shard > 1:
            reduced = machine.run(Stream.REDUCE, comm.costs.reduce_scatter_ns(input_bytes), link=Link.SHARD)
            comm.num_reduce_scatters += 1
        else:
            reduced = machine.run(Stream.REDUCE, comm.costs.copy_ns(input_bytes, input_bytes))
        stream = Stream.REDUCE
        if comm.mesh.replicate > 1:
            stream = Stream.ALL_REDUCE
            machine.wait(stream, reduced)
            machine.run(stream, comm.costs.all_reduce_ns(output_bytes), link=comm.all_reduce_link)
            comm.num_all_reduces += 1
        sharded_bytes = sum(parameter.stored_bytes for parameter in parameters)
        self._post_reduce(stream, is_cast=is_cast, output_bytes=output_bytes, sharded_bytes=sharded_bytes)
        comm.last_post_reduce[stream] = machine.time_ns(stream)
        comm.retained.append((input_bytes, reduced))

    def _post_reduce(self, stream: Stream, *, is_cast: bool, output_bytes: int, sharded_bytes: int) -> None:
        """Cast to the storage dtype and add to what earlier micro-batches left; keep what outlives this call."""
        machine, comm = self._machine, self._comm
        launches = is_cast + comm.is_accumulating
        duration = comm.costs.copy_ns(output_bytes, sharded_bytes) if is_cast else 0
        duration += comm.costs.copy_ns(2 * sharded_bytes, sharded_bytes) if comm.is_accumulating else 0
        if is_cast:
            machine.allocate(stream, MemoryCategory.GRADIENTS, sharded_bytes)
        if launches:
            machine.run(stream, duration, launches)
        is_held = comm.mesh.replicate > 1
        if is_cast and is_held:
            self._held_output = (MemoryCategory.REDUCE_BUFFERS, output_bytes)
        elif is_cast:
            machine.free(Stream.REDUCE, MemoryCategory.REDUCE_BUFFERS, output_bytes)
        if not comm.is_accumulating:
            return
        if not is_cast and is_held:
            self._held_output = (MemoryCategory.GRADIENTS, output_bytes)
        else:
            machine.free(stream, MemoryCategory.GRADIENTS, sharded_bytes)

    def finish_backward(self) -> None:
        """The group's part of the final callback, for a group whose inputs needed no gradient too."""
        if self.state is not TrainingState.POST_BACKWARD:
            self.post_backward()
        self.state = TrainingState.IDLE
        self.finalize_backward()

    def finalize_backward(self) -> None:
        """Wait for all reductions so far and for a gather that nobody used."""
        for event in self._comm.last_post_reduce.values():
            self._machine.wait(Stream.COMPUTE, event)
        self._comm.last_post_reduce.clear()
        if self._held_output is not None:
            self._machine.free(Stream.REDUCE, *self._held_output)
            self._held_output = None
        if self._pending is not None:
            self._machine.wait(Stream.COMPUTE, self._pending)
            self.free_gather_output()
            self._pending = None
        self._forward_indices.clear()
