"""Gradients of units: made whole by autograd, accumulated, reduced, accumulated again as shards."""

from planner.program.build.emitter import Emitter
from planner.program.events import Link, OperationKind, Stream
from planner.program.sizes import UnitBytes
from planner.program.step import Durations, Knobs, StepInputs
from planner.schema import HostRuns, MemoryCategory

_WHOLE = MemoryCategory.UNSHARDED_GRADIENTS
_SHARDED = MemoryCategory.GRADIENTS
_BUFFERS = MemoryCategory.REDUCE_BUFFERS


class Reductions:
    """State of the gradients of all units while a micro-batch is walked through."""

    def __init__(self, inputs: StepInputs, knobs: Knobs, durations: Durations, emitter: Emitter) -> None:
        self._sizes = inputs.sizes
        self._knobs = knobs
        self._durations = durations
        self._collectives = [durations.collectives(mesh) for mesh in knobs.meshes]
        """Of each unit."""
        self._emitter = emitter
        units = range(len(inputs.sizes))
        self._has_whole = {unit for unit in units if knobs.finds_whole_gradients and inputs.sizes[unit].gradients}
        """Units with whole gradients of earlier passes or micro-batches."""
        self._has_shards = {unit for unit in units if knobs.finds_sharded_gradients(unit)}
        self._has_partial_sum = {unit for unit in units if knobs.finds_partial_sums(unit)}
        self._fresh: dict[int, list[str]] = {}
        """Buffers of the gradients that autograd made since the last accumulation or reduction."""
        self._retained: list[tuple[str, int]] = []
        self._late: dict[str, tuple[int, str]] = {}
        """By retained input, the unit and the reduce output that is added when the input is taken back."""
        self._num_reductions = 0
        self._outstanding: dict[Stream, int] = {}
        self._last: dict[int, int] = {}
        self._held: dict[int, list[str]] = {}
        self._offloads: dict[int, int] = {}

    def allocate_found(self) -> None:
        """Gradients that earlier micro-batches left."""
        moment = "between micro-batches"
        allocate = self._emitter.allocate
        for unit, size in enumerate(self._sizes):
            if unit in self._has_shards and not self._knobs.is_on_host(unit):
                allocate(f"D{unit}", self._shard_pool(unit), _SHARDED, size.sharded_gradients, moment)
            if unit in self._has_whole:
                whole = size.whole_gradients if size.accumulates_apart else size.gradients
                allocate(f"W{unit}", Stream.COMPUTE, _WHOLE, whole, moment)
            if unit in self._has_partial_sum:
                allocate(f"S{unit}", Stream.REDUCE, _BUFFERS, size.reduce_output, moment)

    def _shard_pool(self, unit: int) -> Stream:
        return Stream.ALL_REDUCE if self._is_replicated(unit) and self._sizes[unit].casts else Stream.REDUCE

    def _is_replicated(self, unit: int) -> bool:
        return self._knobs.replicate(unit) > 1

    # Whole gradients

    def adds_in_place(self, unit: int) -> bool:
        """Whether autograd adds new gradients of the unit to those that are there."""
        return unit in self._has_whole and not self._sizes[unit].accumulates_apart

    def made(self, unit: int, call: int, size_bytes: int, moment: str) -> None:
        """Autograd has made the gradients of a call."""
        if size_bytes and not self.adds_in_place(unit):
            name = f"G{unit}.{call}"
            self._emitter.allocate(name, Stream.COMPUTE, _WHOLE, size_bytes, moment)
            self._fresh.setdefault(unit, []).append(name)

    def accumulate_whole(self, unit: int) -> None:
        """Before the reshard: add new gradients to those kept in the reduce dtype."""
        size = self._sizes[unit]
        if unit in self._has_whole and size.accumulates_apart and self._fresh.get(unit):
            duration = self._durations.copy_ns(size.gradients + size.whole_gradients, size.whole_gradients)
            self._accumulate(unit, duration, size.whole_gradients)
            self._free_fresh(unit)

    def keep_whole(self, unit: int) -> None:
        """After the reshard of a unit that does not reduce: keep its gradients for later micro-batches."""
        size, emitter = self._sizes[unit], self._emitter
        fresh = self._fresh.pop(unit, [])
        if not fresh:
            return
        self._has_whole.add(unit)
        moment = f"accumulation of {emitter.name(unit)}"
        if size.accumulates_apart:
            emitter.touch(((_WHOLE, size.accumulation_peak),), moment)
            duration = self._durations.copy_ns(size.gradients, size.whole_gradients)
            self._accumulate(unit, duration, size.whole_gradients)
        for name in fresh:
            emitter.free(name)
        whole = size.whole_gradients if size.accumulates_apart else size.gradients
        emitter.allocate(f"W{unit}", Stream.COMPUTE, _WHOLE, whole, moment)

    def add_zeros(self, unit: int) -> None:
        """Gradients of zeros for parameters that got none."""
        zeros = self._sizes[unit].zero_gradients
        if zeros:
            moment = f"zero gradients of {self._emitter.name(unit)}"
            self._emitter.allocate(f"Z{unit}", Stream.COMPUTE, _WHOLE, zeros, moment)
            self._accumulate(unit, self._durations.copy_ns(0, zeros), zeros)

    def _accumulate(self, unit: int, duration_ns: int, size_bytes: int) -> None:
        kind, stream = OperationKind.ACCUMULATE, Stream.COMPUTE
        self._emitter.operation(kind, unit, stream, duration_ns, size_bytes=size_bytes)

    def _free_fresh(self, unit: int) -> None:
        for name in self._fresh.pop(unit, ()):
            self._emitter.free(name)

    # Reduction

    def recycle(self) -> None:
        """Take back the oldest reduce inputs until there is room for one more."""
        while len(self._retained) >= self._knobs.reduce_scatter_max_input_buffers:
            self._pop_retained()

    def _pop_retained(self) -> None:
        name, operation = self._retained.pop(0)
        self._emitter.wait(Stream.COMPUTE, operation)
        self._emitter.free(name)
        if name in self._late:
            unit, output = self._late.pop(name)
            size = self._sizes[unit].sharded_gradients
            duration = self._durations.copy_ns(2 * size, size)
            self._emitter.operation(OperationKind.POST_REDUCE, unit, Stream.COMPUTE, duration)
            self._emitter.free(output)

    def _adds_late(self, unit: int, size: UnitBytes) -> bool:
        """Whether the thread that computes adds the output itself, once it has waited for the reduce-scatter."""
        is_plain = not (size.casts or self._is_replicated(unit) or self._knobs.is_on_host(unit))
        return (
            self._durations.host_runs is HostRuns.KERNELS
            and unit in self._has_shards
            and self._knobs.shard(unit) > 1
            and is_plain
            and self._divisors(unit)[1] == 1
        )

    def reduce(self, unit: int) -> None:
        """Reduce what gradients the unit has, FSDP2's `foreach_reduce`."""
        size = self._sizes[unit]
        if not size.reduce_input:
            return
        self._wait_for_last(unit)
        moment = f"reduce of {self._emitter.name(unit)}"
        chunk_cat = self._copy_in(unit, size, moment)
        output = f"Q{unit}.{self._num_reductions}"
        is_partial = self._is_replicated(unit) and not self._knobs.all_reduces(unit)
        category = _BUFFERS if size.casts or is_partial else _SHARDED
        self._emitter.allocate(output, Stream.REDUCE, category, size.reduce_output, moment)
        last = self._reduce_scatter(unit, size, chunk_cat)
        self._retained.append((f"R{unit}.{self._num_reductions}", last))
        self._num_reductions += 1
        if self._is_replicated(unit):
            last = self._add_partial_sum(unit, size, output, last)
        if is_partial:
            self._outstanding[Stream.REDUCE] = self._last[unit] = last
        else:
            self._finish(unit, size, output, last, moment)
            self._emitter.free(f"S{unit}")
        for name in (f"L{unit}", f"E{unit}"):
            self._emitter.free(name)

    def _wait_for_last(self, unit: int) -> None:
        """A unit that reduces again first waits for what it reduced before."""
        if unit in self._last:
            self._emitter.wait(Stream.COMPUTE, self._last.pop(unit))
        self._free_held(unit)

    def _copy_in(self, unit: int, size: UnitBytes, moment: str) -> int:
        """Copy gradients into the reduce input; those that are not sharded on dimension 0 are rearranged first.

        Local variables of `foreach_reduce` hold what the last of these was before, and the unit's last gradient,
        until the reduction is issued.
        """
        emitter, durations = self._emitter, self._durations
        is_whole = unit in self._has_whole
        read = (size.whole_gradients if is_whole else size.gradients) + size.zero_gradients
        duration, launches = durations.copy_ns(read, size.reduce_input), 1
        moved, largest, last = size.other_dim_gradients(whole=is_whole)
        if moved and self._knobs.shard(unit) > 1:
            emitter.touch(((_WHOLE, largest),), moment)
            emitter.allocate(f"L{unit}", Stream.COMPUTE, _WHOLE, last, moment)
            duration += durations.copy_ns(moved, moved)
            launches += 1
        emitter.allocate(f"R{unit}.{self._num_reductions}", Stream.COMPUTE, _BUFFERS, size.reduce_input, moment)
        chunk_cat = emitter.operation(
            OperationKind.CHUNK_CAT,
            unit,
            Stream.COMPUTE,
            duration,
            size_bytes=size.reduce_input,
            launches=launches,
        )
        self._free_fresh(unit)
        for name in (f"W{unit}", f"Z{unit}"):
            emitter.free(name)
        self._has_whole.discard(unit)
        if self._knobs.shard(unit) > 1:
            last = size.last_gradient(whole=is_whole)
            emitter.allocate(f"E{unit}", Stream.COMPUTE, _WHOLE, last, moment)
        return chunk_cat

    def _reduce_scatter(self, unit: int, size: UnitBytes, chunk_cat: int) -> int:
        emitter, durations = self._emitter, self._durations
        waits: tuple[int, ...] = (chunk_cat,)
        if self._divisors(unit)[0] != 1:
            duration = durations.copy_ns(size.reduce_input, size.reduce_input)
            size_bytes = size.reduce_input
            emitter.operation(
                OperationKind.DIVIDE, unit, Stream.REDUCE, duration, size_bytes=size_bytes, waits=waits
            )
            waits = ()
        if self._knobs.shard(unit) == 1:
            kind, link = OperationKind.LOCAL_REDUCE, None
            duration = durations.copy_ns(size.reduce_input, size.reduce_input)
        else:
            kind, link = OperationKind.REDUCE_SCATTER, self._reduce_link()
            duration = self._collectives[unit].reduce_scatter_ns(size.reduce_input)
        return emitter.operation(
            kind, unit, Stream.REDUCE, duration, size_bytes=size.reduce_input, link=link, waits=waits
        )

    def _reduce_link(self) -> Link:
        apart = self._knobs.separate_reduce_scatter_group and self._durations.concurrent_collectives
        return Link.REDUCE if apart else Link.SHARD

    def _divisors(self, unit: int) -> tuple[int, float]:
        """FSDP2 divides before and after some reductions, by about the root of the number of ranks each."""
        ranks = self._knobs.meshes[unit].num_ranks
        before = 1
        if not self._sizes[unit].divides:
            return 1, 1
        while ranks % before == 0 and ranks / before > before:
            before *= 2
        return before, ranks / before

    def _add_partial_sum(self, unit: int, size: UnitBytes, output: str, last: int) -> int:
        """Over replicas: add to, or become, what earlier micro-batches only reduce-scattered."""
        if unit in self._has_partial_sum:
            duration = self._durations.copy_ns(2 * size.reduce_output, size.reduce_output)
            last = self._emitter.operation(OperationKind.POST_REDUCE, unit, Stream.REDUCE, duration)
            if not self._knobs.all_reduces(unit):
                self._emitter.free(output)
        elif not self._knobs.all_reduces(unit):
            self._has_partial_sum.add(unit)
        return last

    def _finish(self, unit: int, size: UnitBytes, output: str, last: int, moment: str) -> None:
        """All-reduce over replicas, cast, accumulate into shards, offload."""
        stream = Stream.REDUCE
        if self._adds_late(unit, size):
            self._late[self._retained[-1][0]] = unit, output
            self._outstanding[stream] = self._last[unit] = last
            return
        if self._is_replicated(unit):
            last, stream = self._all_reduce(unit, size, last), Stream.ALL_REDUCE
        last = self._post_reduce(unit, size, stream, last)
        is_found = unit in self._has_shards
        gradient = output
        if size.casts:
            gradient = f"{'D+' if is_found else 'D'}{unit}"
            self._emitter.allocate(gradient, self._shard_pool(unit), _SHARDED, size.sharded_gradients, moment)
            self._let_go(unit, output)
        if self._knobs.is_on_host(unit):
            last = self._offload(unit, size, stream, is_found=is_found)
        if is_found or self._knobs.is_on_host(unit):
            if gradient != output:
                self._emitter.free(gradient)
            else:
                self._let_go(unit, output)
        self._has_shards.add(unit)
        self._outstanding[stream] = self._last[unit] = last

    def _let_go(self, unit: int, output: str) -> None:
        """Free a reduce output; one that was all-reduced is held until the end of backward."""
        if self._is_replicated(unit):
            self._held.setdefault(unit, []).append(output)
        else:
            self._emitter.free(output)

    def _all_reduce(self, unit: int, size: UnitBytes, last: int) -> int:
        return self._emitter.operation(
            OperationKind.ALL_REDUCE,
            unit,
            Stream.ALL_REDUCE,
            self._collectives[unit].all_reduce_ns(size.reduce_output),
            size_bytes=size.reduce_output,
            link=Link.SHARD if self._durations.all_reduce_shares_link else Link.REPLICATE,
            waits=(last,),
        )

    def _post_reduce(self, unit: int, size: UnitBytes, stream: Stream, last: int) -> int:
        """Divide, cast and add on the device, as far as each applies."""
        durations: list[int] = []
        if self._divisors(unit)[1] != 1:
            durations.append(self._durations.copy_ns(size.reduce_output, size.reduce_output))
        if size.casts:
            durations.append(self._durations.copy_ns(size.reduce_output, size.sharded_gradients))
        if unit in self._has_shards and not self._knobs.is_on_host(unit):
            durations.append(self._durations.copy_ns(2 * size.sharded_gradients, size.sharded_gradients))
        if not durations:
            return last
        return self._emitter.operation(
            OperationKind.POST_REDUCE, unit, stream, sum(durations), launches=len(durations)
        )

    def _offload(self, unit: int, size: UnitBytes, stream: Stream, *, is_found: bool) -> int:
        """Sharded gradients to the host; the CPU waits at once where it has to add, else at the end of backward."""
        operation = self._emitter.operation(
            OperationKind.OFFLOAD,
            unit,
            stream,
            self._durations.device_to_host_ns(size.sharded_gradients),
            size_bytes=size.sharded_gradients,
            host_waits=is_found,
        )
        if not is_found:
            self._offloads[unit] = operation
        return operation

    # Final callback

    def finalize(self, unit: int) -> None:
        """Wait for every outstanding reduction, then let go of what this unit holds."""
        for operation in self._outstanding.values():
            self._emitter.wait(Stream.COMPUTE, operation)
        self._outstanding.clear()
        self._free_held(unit)
        if unit in self._offloads:
            self._emitter.host_wait(self._offloads.pop(unit))

    def _free_held(self, unit: int) -> None:
        for name in self._held.pop(unit, ()):
            self._emitter.free(name)

    def release_all(self) -> None:
        """Take back all reduce inputs."""
        while self._retained:
            self._pop_retained()
