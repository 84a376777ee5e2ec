"""Parameters of units: gathered, copied out, prefetched, resharded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from planner.program.build.emitter import Emitter
from planner.program.build.in_flight import Sizes
from planner.program.choices import ALWAYS, Choice, Condition, both
from planner.program.events import Link, OperationKind, Stream
from planner.program.step import Durations, Knobs, PrefetchTargets, StepInputs
from planner.schema import HostRuns, MemoryCategory

_GATHERS = MemoryCategory.GATHER_BUFFERS
_UNSHARDED = MemoryCategory.UNSHARDED_PARAMETERS


class _State(Enum):
    SHARDED = auto()
    AFTER_FORWARD = auto()
    """As the unit's resharding after forward leaves it."""
    GATHERED = auto()


@dataclass(frozen=True, slots=True)
class _LetGo:
    """An aliased buffer that its unit is done with, once compute has passed a mark."""

    unit: int
    mark: int
    when: Condition


@dataclass(slots=True)
class _Scenario:
    """One alternative of a prefetch knob, and the units whose gather it has issued and nobody waited for."""

    targets: PrefetchTargets
    condition: Condition
    issued: set[int] = field(default_factory=set)


class Gathers:
    """State of the parameters of all units while a micro-batch is walked through."""

    def __init__(self, inputs: StepInputs, knobs: Knobs, durations: Durations, emitter: Emitter) -> None:
        self._sizes = inputs.sizes
        self._knobs = knobs
        self._durations = durations
        self._collectives = [durations.collectives(mesh) for mesh in knobs.meshes]
        """Of each unit."""
        self._emitter = emitter
        self._states = [
            _State.GATHERED if knobs.starts_gathered(unit) else _State.SHARDED for unit in range(len(inputs.sizes))
        ]
        self._pending: dict[int, list[int]] = {}
        self._copy_outs: dict[int, int] = {}
        self._resharded: dict[tuple[int, int], int] = {}
        """Copies that the next gather of a partially resharded unit reads."""
        self._generations = [0] * len(inputs.sizes)
        """How often each unit was copied out; names its gather's buffer, of which two may be alive."""
        self._deferred: tuple[int, str] | None = None
        self._scenarios: list[_Scenario] = []
        self._in_root = False
        """Within the root's forward, where aliased buffers wait to be freed."""
        self._older: list[_LetGo] = []
        """Aliased buffers that were let go of before the latest gather of such a buffer."""
        self._recent: list[_LetGo] = []

    def begin_root(self) -> None:
        """The root's forward begins."""
        self._in_root = True

    def end_root(self) -> None:
        """The root's forward is over: free all aliased buffers that wait for it."""
        self._in_root = False
        self._free_let_go(self._older)
        self._free_let_go(self._recent)

    def allocate_found(self) -> None:
        """Units that the micro-batch before left gathered."""
        for unit, size in enumerate(self._sizes):
            if self.is_gathered(unit):
                moment = "between micro-batches"
                pool = Stream.COPY_IN if self._knobs.is_aliased(unit) else Stream.COMPUTE
                self._emitter.allocate(f"U{unit}", pool, _UNSHARDED, size.gathered, moment)

    def wait_for_compute(self) -> None:
        """The gather streams follow all that the compute stream was given so far."""
        last = self._emitter.last_of(Stream.COMPUTE)
        if last is not None:
            self._wait_gather_streams(last)

    def enter(self, prefetch: Choice[PrefetchTargets]) -> None:
        """Begin a pass (forward or backward) under a prefetch knob; what is pending stays so."""
        pending = set(self._pending)
        self._scenarios = [_Scenario(targets, when, set(pending)) for targets, when in prefetch]

    def is_gathered(self, unit: int) -> bool:
        """Whether nothing has to be gathered before the unit runs."""
        return self._states[unit] is _State.GATHERED

    # Gather

    def unshard(self, unit: int, pass_type: str, only: tuple[_Scenario, ...] | None = None) -> None:
        """Issue the gather of a unit in every scenario (or in `only`) that has not issued it yet."""
        asked = [
            scenario for scenario in (self._scenarios if only is None else only) if unit not in scenario.issued
        ]
        if not asked or not self._sizes[unit].gathered or self.is_gathered(unit):
            return
        for scenario in asked:
            scenario.issued.add(unit)
        everywhere = len(asked) == len(self._scenarios)
        for ranks, when in self._forms(unit):
            for condition in [ALWAYS] if everywhere else [scenario.condition for scenario in asked]:
                self._gather(unit, ranks, pass_type, both(when, condition))

    def _forms(self, unit: int) -> Iterator[tuple[int, Condition]]:
        """Over how many ranks the unit is sharded now, and when; nothing where it is gathered."""
        match self._states[unit]:
            case _State.SHARDED:
                yield self._knobs.shard(unit), ALWAYS
            case _State.AFTER_FORWARD:
                for value, when in self._knobs.reshard[unit]:
                    if value is not False:
                        yield self._knobs.shard(unit) if value is True else value, when
            case _State.GATHERED:
                pass

    def _gather(self, unit: int, ranks: int, pass_type: str, when: Condition) -> None:
        self._pending.setdefault(unit, [])
        if ranks == 1:
            return
        emitter, durations = self._emitter, self._durations
        is_partial = ranks < self._knobs.shard(unit)
        if is_partial:
            self._wait_gather_streams(self._resharded[unit, ranks], when)
        size = self._sizes[unit].gathered
        share = size // ranks
        moment = f"gather of {emitter.name(unit)} in {pass_type}"
        if self._knobs.is_on_host(unit) and not is_partial:
            self._copy_to_device(unit, moment, when)
        else:
            cast = self._sizes[unit].partial_cast(ranks) if is_partial else self._sizes[unit].cast
            if self._knobs.is_on_host(unit):
                cast = 0
            emitter.allocate(f"C{unit}", Stream.COPY_IN, _GATHERS, cast, moment, when)
        if self._knobs.is_aliased(unit):
            if not self._reserve(unit):
                emitter.allocate(f"U{unit}", Stream.COPY_IN, _UNSHARDED, size, moment, when)
        else:
            emitter.allocate(self._output(unit), Stream.COPY_IN, _GATHERS, size, moment, when)
        copy_in = emitter.operation(
            OperationKind.COPY_IN,
            unit,
            Stream.COPY_IN,
            durations.copy_ns(share, share),
            size_bytes=share,
            when=when,
        )
        emitter.free(f"C{unit}", when)
        gather = emitter.operation(
            OperationKind.ALL_GATHER,
            unit,
            Stream.GATHER,
            self._collectives[unit].all_gather_ns(size, ranks if is_partial else None),
            size_bytes=size,
            link=Link.SHARD,
            waits=(copy_in,),
            when=when,
        )
        self._pending[unit].append(gather)

    def _output(self, unit: int) -> str:
        return f"A{unit}.{self._generations[unit]}"

    def _reserve(self, unit: int) -> bool:
        """Free what other units let go of before the gather before; whether this unit's buffer is there still."""
        own = [entry for entry in (*self._older, *self._recent) if entry.unit == unit]
        for entry in own:
            assert not entry.when, "units that run several times are searched without gathers in place"
            self._wait_gather_streams(entry.mark)
        self._free_let_go([entry for entry in self._older if entry not in own])
        self._older, self._recent = [entry for entry in self._recent if entry not in own], []
        return bool(own)

    def _free_let_go(self, entries: list[_LetGo]) -> None:
        for entry in entries:
            self._wait_gather_streams(entry.mark, entry.when)
            self._emitter.free(f"U{entry.unit}", entry.when)
        entries.clear()

    def _mark(self, unit: int, waits: tuple[int, ...] = (), when: Condition = ALWAYS) -> int:
        kind, stream = OperationKind.MARK, Stream.COMPUTE
        return self._emitter.operation(kind, unit, stream, 0, launches=0, waits=waits, when=when)

    def _free_unsharded(self, unit: int, conditions: Sequence[Condition]) -> None:
        """Free a gathered unit; an aliased one once the gather streams are told to wait, and not yet in forward."""
        if not self._knobs.is_aliased(unit):
            for when in conditions:
                self._emitter.free(f"U{unit}", when)
            return
        if not conditions:
            return
        mark = self._mark(unit)
        self._recent += [_LetGo(unit, mark, when) for when in conditions]
        if not self._in_root:
            self._free_let_go(self._recent)

    def _copy_to_device(self, unit: int, moment: str, when: Condition) -> None:
        """Shards come from the host and are cast one by one; the last copies stay until the copy-in is done."""
        emitter, size = self._emitter, self._sizes[unit]
        peak, kept = size.device_copies
        emitter.allocate(f"H{unit}", Stream.COPY_IN, _GATHERS, peak, moment, when)
        self._fetch(unit, Stream.COPY_IN, when)
        emitter.free(f"H{unit}", when)
        emitter.allocate(f"C{unit}", Stream.COPY_IN, _GATHERS, kept, moment, when)

    def _fetch(self, unit: int, stream: Stream, when: Condition) -> None:
        size_bytes = self._sizes[unit].stored
        self._emitter.operation(
            OperationKind.HOST_TO_DEVICE,
            unit,
            stream,
            self._durations.host_to_device_ns(size_bytes),
            size_bytes=size_bytes,
            when=when,
        )

    # Copy-out

    def wait_for_unshard(self, unit: int, pass_type: str, *, defers: bool) -> None:
        """Copy a gathered unit out; `defers` keeps the gather's buffer until the next copy-out, as forward does.

        A local variable of FSDP2's method holds what was deferred before until the copy-out has been issued. FSDP2
        defers nothing where it gathers asynchronously.
        """
        if not self._sizes[unit].gathered or unit not in self._pending:
            return
        defers = defers and self._durations.host_runs is not HostRuns.KERNELS
        before = self._deferred if defers else None
        if before is not None:
            self._wait_gather_streams(self._copy_outs[before[0]])
        gathers = tuple(self._pending.pop(unit))
        for scenario in self._scenarios:
            scenario.issued.discard(unit)
        output = self._output(unit)
        for ranks, when in self._forms(unit):
            self._copy_out(unit, gathers, pass_type, when)
            if not defers or self._knobs.shard(unit) == 1:
                self._release(unit, output, when)
            if 1 < ranks < self._knobs.shard(unit):
                self._emitter.free(f"F{unit}", when)
        self._states[unit] = _State.GATHERED
        self._generations[unit] += 1
        if before is not None:
            self._emitter.free(before[1])
        if defers:
            self._deferred = (unit, output) if self._knobs.shard(unit) > 1 else None

    def release_deferred(self) -> None:
        """Let go of the buffer that a copy-out in forward left behind."""
        if self._deferred is not None:
            self._release(*self._deferred, ALWAYS)
            self._deferred = None

    def _release(self, unit: int, output: str, when: Condition) -> None:
        """The gather streams follow the copy-out before the all-gather output may be used again."""
        self._wait_gather_streams(self._copy_outs[unit], when)
        if self._knobs.shard(unit) > 1:
            self._emitter.free(output, when)

    def _wait_gather_streams(self, operation: int, when: Condition = ALWAYS) -> None:
        self._emitter.wait(Stream.COPY_IN, operation, when)
        self._emitter.wait(Stream.GATHER, operation, when)

    def _copy_out(self, unit: int, gathers: tuple[int, ...], pass_type: str, when: Condition) -> None:
        emitter, size = self._emitter, self._sizes[unit]
        if self._knobs.is_aliased(unit):
            self._copy_outs[unit] = self._mark(unit, gathers, when)
            return
        moment = f"copy-out of {emitter.name(unit)} in {pass_type}"
        on_host = self._knobs.is_on_host(unit)
        is_sharded = self._knobs.shard(unit) > 1
        if is_sharded:
            whole, others = size.gathered, size.other_dims
        else:
            whole, others = size.largest_casts(from_host=on_host)
        if others or not is_sharded:
            emitter.touch(((_UNSHARDED, whole), (MemoryCategory.TRANSIENTS, others)), moment, when)
        if on_host and not is_sharded:
            self._fetch(unit, Stream.COMPUTE, when)
        emitter.allocate(f"U{unit}", Stream.COMPUTE, _UNSHARDED, size.gathered, moment, when)
        duration, launches = self._durations.copy_ns(size.gathered, size.gathered), 1
        if size.other_dims and is_sharded:
            duration += self._durations.copy_ns(size.other_dims, size.other_dims)
            launches += 1
        self._copy_outs[unit] = emitter.operation(
            OperationKind.COPY_OUT,
            unit,
            Stream.COMPUTE,
            duration,
            size_bytes=size.gathered,
            launches=launches,
            waits=gathers,
            when=when,
        )

    # Prefetch

    def prefetch(self, unit: int, pass_type: str, default: int | None = None) -> None:
        """Issue the gathers of a unit's prefetch list, or of `default` where it has none.

        What all scenarios issue here is issued once.
        """
        if default is not None:
            listless = tuple(s for s in self._scenarios if not (s.targets and s.targets[unit]))
            self.unshard(default, pass_type, listless)
        ordered = dict.fromkeys(target for s in self._scenarios if s.targets for target in s.targets[unit])
        for target in ordered:
            asking = tuple(s for s in self._scenarios if s.targets and target in s.targets[unit])
            self.unshard(target, pass_type, asking)

    # Reshard

    def reshard_after_forward(self, unit: int, held: Sizes) -> None:
        """Free a unit, or replace it by a smaller part, as its knob says; `held` is alive meanwhile."""
        if self._states[unit] is not _State.GATHERED or not self._sizes[unit].gathered:
            return
        aliased = self._knobs.is_aliased(unit)
        options = [(value, when) for value, when in self._knobs.reshard[unit] if value is not False]
        for value, when in options:
            if value is not True:
                self._reshard_partially(unit, value, when, held)
            elif not aliased:
                self._free_unsharded(unit, [when])
        if options:
            if aliased:
                self._free_unsharded(unit, [when for _, when in options])
            self._states[unit] = _State.AFTER_FORWARD

    def _reshard_partially(self, unit: int, ranks: int, when: Condition, held: Sizes) -> None:
        emitter, size = self._emitter, self._sizes[unit]
        share = size.gathered // ranks
        moment = f"reshard of {emitter.name(unit)} after forward"
        for held_bytes, under in held:
            parts = ((_UNSHARDED, size.clone_peak(ranks)), (MemoryCategory.TRANSIENTS, held_bytes))
            emitter.touch(parts, moment, both(when, under))
        if not self._knobs.is_aliased(unit):
            emitter.free(f"U{unit}", when)
        emitter.allocate(f"F{unit}", Stream.COMPUTE, _UNSHARDED, share, moment, when)
        self._resharded[unit, ranks] = emitter.operation(
            OperationKind.RESHARD,
            unit,
            Stream.COMPUTE,
            self._durations.copy_ns(share, share),
            size_bytes=share,
            when=when,
        )

    def reshard_after_backward(self, unit: int) -> None:
        """Free a unit that is done with its backward, unless the next micro-batch is to find it gathered."""
        if self._knobs.keeps_after_backward(unit):
            return
        self._free_unsharded(unit, self._when_gathered(unit))
        if self._states[unit] is _State.AFTER_FORWARD:
            self._emitter.free(f"F{unit}")
        self._states[unit] = _State.SHARDED

    def _when_gathered(self, unit: int) -> list[Condition]:
        match self._states[unit]:
            case _State.GATHERED:
                return [ALWAYS]
            case _State.AFTER_FORWARD:
                return [when for value, when in self._knobs.reshard[unit] if value is False]
            case _State.SHARDED:
                return []

    def drop_unused(self, unit: int) -> None:
        """A gather that nobody waited for (its unit had no backward) ends with the micro-batch."""
        for gather in self._pending.pop(unit, ()):
            self._emitter.wait(Stream.COMPUTE, gather)
            self._emitter.free(self._output(unit))
