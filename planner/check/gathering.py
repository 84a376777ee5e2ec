"""Parameters of a group between sharded and whole (`unshard`, `wait_for_unshard`, `reshard` of torch 2.13)."""

from dataclasses import dataclass
from enum import Enum, auto

from planner.check.comm import CommContext, HeldGather
from planner.check.in_place import InPlaceBuffer
from planner.check.machine import Link, Stream
from planner.check.units import ShardedParameter, Unit
from planner.schema.cluster import HostRuns
from planner.schema.plan import MemoryCategory

_GATHER = MemoryCategory.GATHER_BUFFERS
_TRANSIENTS = MemoryCategory.TRANSIENTS
_UNSHARDED = MemoryCategory.UNSHARDED_PARAMETERS


class ShardedState(Enum):
    """Where the parameters are."""

    SHARDED = auto()
    SHARDED_POST_FORWARD = auto()
    """Over a part of the shard axis, in device memory, besides the stored shards."""
    UNSHARDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """An all-gather that nobody has waited for yet."""

    end_ns: int
    ranks: int
    pool: Stream
    """Where its output is."""


class Gathering:
    """The parameters of one group, and their all-gathers."""

    def __init__(self, unit: Unit, comm: CommContext) -> None:
        self.was_whole = False
        """Whether the parameters have ever been whole."""
        self._unit = unit
        self._comm = comm
        self._machine = comm.machine
        self._ranks_after_forward = _ranks_after_forward(unit, unit.mesh.shard)
        self._state = ShardedState.SHARDED
        self._pending: Gather | None = None
        self._resharded_ns: int | None = None
        """End of a partial resharding that no gather has waited for yet."""
        self._post_forward_bytes: dict[str, int] = {}
        self._gathered_bytes = unit.mesh.shard * unit.gather_input_bytes
        self._in_place = InPlaceBuffer(size_bytes=self._gathered_bytes) if unit.plan.alias_gathers else None

    @property
    def is_whole(self) -> bool:
        """Whether the parameters are whole."""
        return self._state is ShardedState.UNSHARDED

    @property
    def is_begun(self) -> bool:
        """Whether the parameters are whole or on their way."""
        return self.is_whole or self._pending is not None

    def begin_micro_batch(self) -> None:
        """What happened before lies in the past of the new clocks."""
        if self._resharded_ns is not None:
            self._resharded_ns = 0

    def unshard(self, *, on_compute: bool = False) -> None:
        """Issue copy-in and all-gather unless the parameters are whole or on their way.

        Args:
            on_compute: both run on the compute stream, as FSDP2 does outside forward and pre-backward.
        """
        if self.is_begun:
            return
        if self._resharded_ns is not None:
            self._comm.wait_gather_streams(self._resharded_ns)
            self._resharded_ns = None
        shard = self._unit.mesh.shard
        if shard == 1:
            self._pending = Gather(end_ns=0, ranks=1, pool=Stream.COMPUTE)
            return
        copy_in, gather = (Stream.COMPUTE,) * 2 if on_compute else (Stream.COPY_IN, Stream.GATHER)
        is_partial = self._state is ShardedState.SHARDED_POST_FORWARD
        ranks = self._ranks_after_forward or shard if is_partial else shard
        self._copy_in(copy_in, self._gathered_bytes // ranks)
        self._machine.wait_stream(gather, copy_in)
        collectives = self._comm.costs.collectives(self._unit.mesh)
        duration = collectives.all_gather_ns(self._gathered_bytes, ranks=ranks if is_partial else None)
        end_ns = self._machine.run(gather, duration, link=Link.SHARD)
        self._pending = Gather(end_ns=end_ns, ranks=ranks, pool=copy_in)
        self._comm.num_all_gathers += self._comm.times

    def _copy_in(self, stream: Stream, share_bytes: int) -> None:
        """Make the inputs of the all-gather, its output, and copy the one into the other."""
        comes_from_host = self._unit.is_on_host and self._state is ShardedState.SHARDED
        inputs_bytes = self._copies_from_host(stream) if comes_from_host else self._casts(stream)
        if self._in_place:
            self._comm.in_place.gather_into(self._in_place, stream)
        else:
            self._machine.allocate(stream, _GATHER, self._gathered_bytes)
        self._machine.run(stream, self._comm.costs.copy_ns(share_bytes, share_bytes))
        self._machine.free(stream, _GATHER, inputs_bytes)

    def _casts(self, stream: Stream) -> int:
        """Cast everything at once; what was resharded in part is in `param_dtype`, and copied all the same."""
        casts = [parameter for parameter in self._unit.flats if parameter.cast_bytes]
        size_bytes = sum(parameter.cast_bytes for parameter in casts)
        if self._state is ShardedState.SHARDED_POST_FORWARD:
            is_copied = not self._unit.is_on_host
            size_bytes = sum(self._post_forward_bytes[parameter.name] for parameter in casts) if is_copied else 0
        self._machine.allocate(stream, _GATHER, size_bytes)
        return size_bytes

    def _copies_from_host(self, stream: Stream) -> int:
        """Copy parameter by parameter; where it is cast, the copy lives until its cast is made."""
        total = 0
        for parameter in self._unit.flats:
            self._machine.allocate(stream, _GATHER, parameter.stored_bytes)
            total += parameter.cast_bytes or parameter.stored_bytes
            if parameter.cast_bytes:
                self._machine.allocate(stream, _GATHER, parameter.cast_bytes)
                self._machine.free(stream, _GATHER, parameter.stored_bytes)
        self._machine.run(stream, self._comm.costs.host_to_device_ns(self._unit.stored_bytes))
        return total

    def wait(self, *, is_forward: bool) -> None:
        """Copy gathered parameters out on the compute stream; in forward their buffer is held for a while."""
        if self._pending is None:
            return
        gather, self._pending = self._pending, None
        held_before = self._comm.wait_for_deferred() if is_forward else None
        copied_out_ns = self._take_out(gather)
        self._drop_post_forward_shards()
        self._state, self.was_whole = ShardedState.UNSHARDED, True
        if held_before is not None:  # a local variable of FSDP2's method holds it until here
            self._machine.free(held_before.pool, _GATHER, held_before.size_bytes)
        if is_forward and gather.ranks > 1 and self._machine.host_runs is not HostRuns.KERNELS:
            size_bytes = 0 if self._in_place else self._gathered_bytes
            held = HeldGather(size_bytes=size_bytes, pool=gather.pool, copied_out_ns=copied_out_ns)
            self._comm.deferred = held
            return
        self._comm.wait_gather_streams(copied_out_ns)
        self._drop_output(gather)

    def _take_out(self, gather: Gather) -> int:
        """When the output of the all-gather has been copied; in place, what compute has been given by then."""
        if self._in_place:
            self._machine.wait(Stream.COMPUTE, gather.end_ns)
            return self._machine.time_ns(Stream.COMPUTE)
        return self._copy_out(gather) if gather.ranks > 1 else self._copy_alone()

    def _copy_out(self, gather: Gather) -> int:
        """Parameters that are sharded on another dimension than 0 pass through a second buffer."""
        machine, costs = self._machine, self._comm.costs
        machine.wait(Stream.COMPUTE, gather.end_ns)
        detour = 0
        for parameter in self._unit.flats:
            whole = self._whole_bytes(parameter)
            machine.allocate(Stream.COMPUTE, _UNSHARDED, whole)
            if parameter.dim:
                machine.allocate(Stream.COMPUTE, _TRANSIENTS, whole)
                detour += whole
        duration = costs.copy_ns(self._gathered_bytes, self._gathered_bytes)
        duration += costs.copy_ns(detour, detour) if detour else 0
        copied_out_ns = machine.run(Stream.COMPUTE, duration, 2 if detour else 1)
        machine.free(Stream.COMPUTE, _TRANSIENTS, detour)
        return copied_out_ns

    def _copy_alone(self) -> int:
        """Without an all-gather each parameter is fetched and cast alone; that lives until the next one is made."""
        machine, costs, previous = self._machine, self._comm.costs, 0
        for parameter in self._unit.flats:
            fetched = parameter.stored_bytes if self._unit.is_on_host else 0
            machine.allocate(Stream.COMPUTE, _TRANSIENTS, fetched)
            if parameter.cast_bytes:
                machine.allocate(Stream.COMPUTE, _TRANSIENTS, parameter.cast_bytes)
                machine.free(Stream.COMPUTE, _TRANSIENTS, fetched)
            machine.free(Stream.COMPUTE, _TRANSIENTS, previous)
            previous = parameter.cast_bytes or fetched
            machine.allocate(Stream.COMPUTE, _UNSHARDED, self._whole_bytes(parameter))
        if self._unit.is_on_host:
            machine.run(Stream.COMPUTE, costs.host_to_device_ns(self._unit.stored_bytes))
        copied_out_ns = machine.run(Stream.COMPUTE, costs.copy_ns(self._gathered_bytes, self._gathered_bytes))
        machine.free(Stream.COMPUTE, _TRANSIENTS, previous)
        return copied_out_ns

    def _whole_bytes(self, parameter: ShardedParameter) -> int:
        return self._unit.mesh.shard * parameter.gather_input_bytes

    def _drop_output(self, gather: Gather) -> None:
        if gather.ranks > 1 and not self._in_place:
            self._machine.free(gather.pool, _GATHER, self._gathered_bytes)

    def reshard(self, *, after_forward: bool, held_bytes: int = 0) -> None:
        """Free the whole parameters, after forward as the unit wants it; `held_bytes` are alive meanwhile.

        FSDP2 keeps the data of a partial resharding that no gather has used, until the next one replaces it.
        """
        if after_forward and self._ranks_after_forward is None:
            return
        if after_forward and self._ranks_after_forward != self._unit.mesh.shard:
            self._machine.allocate(Stream.COMPUTE, _TRANSIENTS, held_bytes)
            self._reshard_in_part(self._ranks_after_forward or 1)
            self._machine.free(Stream.COMPUTE, _TRANSIENTS, held_bytes)
            return
        if self.is_whole and self._in_place:
            self._comm.in_place.let_go(self._in_place)
        elif self.is_whole:
            self._machine.free(Stream.COMPUTE, _UNSHARDED, self._gathered_bytes)
        self._state = ShardedState.SHARDED

    def _reshard_in_part(self, ranks: int) -> None:
        assert self.is_whole, "a pass ends with whole parameters"
        machine = self._machine
        for parameter in self._unit.flats:
            whole = self._whole_bytes(parameter)
            machine.allocate(Stream.COMPUTE, _UNSHARDED, whole // ranks)
            machine.free(Stream.COMPUTE, _UNSHARDED, self._post_forward_bytes.get(parameter.name, 0))
            machine.free(Stream.COMPUTE, _UNSHARDED, 0 if self._in_place else whole)
            self._post_forward_bytes[parameter.name] = whole // ranks
        size_bytes = self._gathered_bytes // ranks
        self._resharded_ns = machine.run(Stream.COMPUTE, self._comm.costs.copy_ns(size_bytes, size_bytes))
        if self._in_place:
            self._comm.in_place.let_go(self._in_place)
        self._state = ShardedState.SHARDED_POST_FORWARD

    def _drop_post_forward_shards(self) -> None:
        if self._state is ShardedState.SHARDED_POST_FORWARD:
            self._machine.free(Stream.COMPUTE, _UNSHARDED, sum(self._post_forward_bytes.values()))
            self._post_forward_bytes.clear()

    def finalize(self) -> None:
        """Wait for an all-gather that nobody used, and drop it."""
        if self._pending is not None:
            self._machine.wait(Stream.COMPUTE, self._pending.end_ns)
            self._drop_output(self._pending)
            self._pending = None


def _ranks_after_forward(unit: Unit, shard: int) -> int | None:
    """Ranks that the unit is sharded over after forward; None when it stays whole."""
    wanted = unit.plan.reshard_after_forward
    if wanted is None:
        wanted = not unit.is_root
    if isinstance(wanted, bool):
        return shard if wanted else None
    return wanted
