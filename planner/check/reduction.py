"""Reduction of a group's gradients: `foreach_reduce` of torch 2.13."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.check.comm import CommContext, RetainedInput
from planner.check.gradients import FullGradient
from planner.check.machine import Stream
from planner.check.units import ShardedParameter, Unit
from planner.schema.base import DType
from planner.schema.cluster import HostRuns
from planner.schema.decisions import MeshPlan
from planner.schema.plan import MemoryCategory

_REDUCE = MemoryCategory.REDUCE_BUFFERS
_SHARDED = MemoryCategory.GRADIENTS
_UNSHARDED = MemoryCategory.UNSHARDED_GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSizes:
    """What one reduction moves."""

    full_bytes: int
    input_bytes: int
    output_bytes: int
    sharded_bytes: int
    """Result in the storage dtype."""
    is_cast: bool
    divides_before: bool
    divides_after: bool

    @classmethod
    def of(cls, taken: Sequence[FullGradient], mesh: MeshPlan) -> "ReduceSizes":
        """Sizes for full gradients, all of one element type as FSDP2 requires."""
        parameters = [item.parameter for item in taken]
        output_bytes = sum(parameter.reduce_output_bytes for parameter in parameters)
        before, after = divides(parameters[0].reduced, mesh.num_ranks)
        return cls(
            full_bytes=sum(item.size_bytes for item in taken),
            input_bytes=mesh.shard * output_bytes,
            output_bytes=output_bytes,
            sharded_bytes=sum(parameter.stored_bytes for parameter in parameters),
            is_cast=any(parameter.reduced is not parameter.storage for parameter in parameters),
            divides_before=before,
            divides_after=after,
        )


def divides(dtype: DType, num_ranks: int) -> tuple[bool, bool]:
    """Whether gradients are divided before and after a reduction (`_get_gradient_divide_factors`).

    Float32 and bfloat16 are averaged by the collective itself; other types are divided by about the square root of
    the number of ranks on both sides, so that sums do not overflow.
    """
    if dtype in (DType.FLOAT32, DType.BFLOAT16):
        return False, False
    before = 1
    while num_ranks % before == 0 and num_ranks > before * before:
        before *= 2
    return before != 1, before != num_ranks


class Reduction:
    """The reductions of one group and what they leave behind."""

    def __init__(self, unit: Unit, comm: CommContext) -> None:
        self.sharded_gradients: set[str] = set()
        """Parameters that have their sharded gradient."""
        self._unit = unit
        self._comm = comm
        self._machine = comm.machine
        self._last_ns: int | None = None
        """End of the last reduction, unless the group has waited for it."""
        self._all_reduced_ns: int | None = None
        """End of the last all-reduce, unless the group has waited for it."""
        self._held: tuple[MemoryCategory, int] | None = None
        """Buffer of that all-reduce, which FSDP2 holds as long, where nothing else does."""
        self._partial_bytes = 0
        """Sum of reduce-scatters that waits for its all-reduce."""
        self._offloaded_ns: int | None = None

    def gradient_pool(self, parameter: ShardedParameter) -> Stream:
        """Stream that makes the sharded gradient of a parameter."""
        is_cast = parameter.reduced is not parameter.storage
        return Stream.ALL_REDUCE if is_cast and self._unit.mesh.replicate > 1 else Stream.REDUCE

    def run(self, taken: Sequence[FullGradient]) -> None:
        """Reduce full gradients, and free them."""
        machine, comm = self._machine, self._comm
        sizes = ReduceSizes.of(taken, self._unit.mesh)
        self._wait_for_last()
        replaced_bytes = self._copy_in(taken, sizes)
        is_partial = self._unit.mesh.replicate > 1 and not comm.all_reduces
        is_final = not (sizes.is_cast or is_partial or self._unit.is_on_host)
        category = _SHARDED if is_final else _REDUCE
        machine.allocate(Stream.REDUCE, category, sizes.output_bytes)
        reduced_ns = self._reduce_scatter(sizes)
        stream, late_bytes = Stream.REDUCE, 0
        if self._adds_late(taken, sizes):
            late_bytes = sizes.output_bytes
        elif is_partial:
            self._keep_partial(sizes.output_bytes)
        else:
            stream = self._all_reduce(sizes.output_bytes)
            self._post_reduce(taken, sizes, stream)
            self._release_output(taken, sizes, stream, category)
        self._last_ns = comm.last_post_reduce[stream] = machine.time_ns(stream)
        comm.retained.append(
            RetainedInput(size_bytes=sizes.input_bytes, reduced_ns=reduced_ns, late_bytes=late_bytes)
        )
        machine.free(Stream.COMPUTE, _UNSHARDED, replaced_bytes)

    def _adds_late(self, taken: Sequence[FullGradient], sizes: ReduceSizes) -> bool:
        """The thread that computes waits for the reduce-scatter only when it needs the room, and adds then."""
        changes = sizes.is_cast or sizes.divides_after or self._unit.is_on_host
        is_alone = self._unit.mesh.replicate == 1 < self._unit.mesh.shard
        is_late = self._machine.host_runs is HostRuns.KERNELS and is_alone and not changes
        return is_late and all(self._has_gradient(item) for item in taken)

    def _wait_for_last(self) -> None:
        for event_ns in (self._last_ns, self._all_reduced_ns):
            if event_ns is not None:
                self._machine.wait(Stream.COMPUTE, event_ns)
        self._forget_last()

    def _forget_last(self) -> None:
        self._last_ns = self._all_reduced_ns = None
        if self._held is not None:
            self._machine.free(Stream.REDUCE, *self._held)
            self._held = None

    def _copy_in(self, taken: Sequence[FullGradient], sizes: ReduceSizes) -> int:
        """Copy the gradients into the reduce input; return the bytes of those that outlive this.

        Gradients that are sharded on another dimension than 0 are rearranged one by one. Local variables of
        `foreach_reduce` hold what the last of them was before, and the last gradient of all, until the reduction
        has been issued.
        """
        machine, costs = self._machine, self._comm.costs
        rearranged = replaced = 0
        for item in taken:
            if item.parameter.dim and self._unit.mesh.shard > 1:
                machine.free(Stream.COMPUTE, _UNSHARDED, replaced)
                machine.allocate(Stream.COMPUTE, _UNSHARDED, item.size_bytes)
                replaced = item.size_bytes
                rearranged += item.size_bytes
        machine.allocate(Stream.COMPUTE, _REDUCE, sizes.input_bytes)
        duration = costs.copy_ns(sizes.full_bytes, sizes.input_bytes)
        duration += costs.copy_ns(rearranged, rearranged) if rearranged else 0
        machine.run(Stream.COMPUTE, duration, 2 if rearranged else 1)
        is_held = self._unit.mesh.shard > 1 and not taken[-1].parameter.dim
        last = taken[-1].size_bytes if is_held else 0
        machine.free(Stream.COMPUTE, _UNSHARDED, sizes.full_bytes - last)
        machine.wait_stream(Stream.REDUCE, Stream.COMPUTE)
        return replaced + last

    def _reduce_scatter(self, sizes: ReduceSizes) -> int:
        machine, comm, size_bytes = self._machine, self._comm, sizes.input_bytes
        if sizes.divides_before:
            machine.run(Stream.REDUCE, comm.costs.copy_ns(size_bytes, size_bytes))
        if self._unit.mesh.shard == 1:
            return machine.run(Stream.REDUCE, comm.costs.copy_ns(size_bytes, size_bytes))
        comm.num_reduce_scatters += comm.times
        duration = comm.costs.collectives(self._unit.mesh).reduce_scatter_ns(size_bytes)
        return machine.run(Stream.REDUCE, duration, link=comm.reduce_scatter_link)

    def _keep_partial(self, output_bytes: int) -> None:
        """The first output without all-reduce becomes the partial sum; later ones are added to it."""
        if self._partial_bytes:
            self._add_partial()
            self._machine.free(Stream.REDUCE, _REDUCE, output_bytes)
        else:
            self._partial_bytes = output_bytes

    def _add_partial(self) -> None:
        size_bytes = self._partial_bytes
        self._machine.run(Stream.REDUCE, self._comm.costs.copy_ns(2 * size_bytes, size_bytes))

    def _all_reduce(self, output_bytes: int) -> Stream:
        """All-reduce the output with the partial sum on a hybrid mesh; the stream of what follows."""
        comm, machine = self._comm, self._machine
        if self._unit.mesh.replicate == 1:
            return Stream.REDUCE
        if self._partial_bytes:
            self._add_partial()
        machine.wait_stream(Stream.ALL_REDUCE, Stream.REDUCE)
        duration = comm.costs.collectives(self._unit.mesh).all_reduce_ns(output_bytes)
        self._all_reduced_ns = machine.run(Stream.ALL_REDUCE, duration, link=comm.all_reduce_link)
        comm.num_all_reduces += comm.times
        return Stream.ALL_REDUCE

    def _post_reduce(self, taken: Sequence[FullGradient], sizes: ReduceSizes, stream: Stream) -> None:
        """Divide, cast to the storage dtype, and add to sharded gradients or bring to the host."""
        machine, costs = self._machine, self._comm.costs
        added_bytes = sum(item.parameter.stored_bytes for item in taken if self._has_gradient(item))
        if self._unit.is_on_host:
            added_bytes = 0
        durations = [
            *([costs.copy_ns(sizes.output_bytes, sizes.output_bytes)] if sizes.divides_after else []),
            *([costs.copy_ns(sizes.output_bytes, sizes.sharded_bytes)] if sizes.is_cast else []),
            *([costs.copy_ns(2 * added_bytes, added_bytes)] if added_bytes else []),
        ]
        if sizes.is_cast:
            machine.allocate(stream, self._cast_category, sizes.sharded_bytes)
        if durations:
            machine.run(stream, sum(durations), len(durations))
        if self._unit.is_on_host:
            self._offload(taken, sizes, stream)

    @property
    def _cast_category(self) -> MemoryCategory:
        return _REDUCE if self._unit.is_on_host else _SHARDED

    def _has_gradient(self, item: FullGradient) -> bool:
        return item.parameter.name in self.sharded_gradients

    def _offload(self, taken: Sequence[FullGradient], sizes: ReduceSizes, stream: Stream) -> None:
        """Copy to the host, which waits for it at once where it has a gradient to add it to."""
        end_ns = self._machine.run(stream, self._comm.costs.device_to_host_ns(sizes.sharded_bytes))
        for item in taken:
            if self._has_gradient(item):
                self._machine.touch_host(item.parameter.stored_bytes)
            else:
                self._machine.allocate_host(item.parameter.stored_bytes)
        if any(self._has_gradient(item) for item in taken):
            self._machine.host_waits(end_ns)
        else:
            self._offloaded_ns = end_ns

    def _release_output(
        self, taken: Sequence[FullGradient], sizes: ReduceSizes, stream: Stream, category: MemoryCategory
    ) -> None:
        """Free what is neither a sharded gradient nor held with the all-reduce."""
        is_spent = self._unit.is_on_host or all(self._has_gradient(item) for item in taken)
        if sizes.is_cast and is_spent:
            self._machine.free(stream, self._cast_category, sizes.sharded_bytes)
        if sizes.is_cast or is_spent:
            self._held = (category, sizes.output_bytes)
            if self._all_reduced_ns is None:
                self._machine.free(Stream.REDUCE, *self._held)
                self._held = None
        self._machine.free(Stream.REDUCE, _REDUCE, self._partial_bytes)
        self._partial_bytes = 0
        self.sharded_gradients |= {item.parameter.name for item in taken}

    def finalize(self) -> None:
        """The group's part of the final callback: let go of buffers, let the CPU wait for offloaded gradients."""
        self._forget_last()
        if self._offloaded_ns is not None:
            self._machine.host_waits(self._offloaded_ns)
            self._offloaded_ns = None
