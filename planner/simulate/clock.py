"""When every operation of a program runs: the rules of docs/model.md, "Streams, pools and links"."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

from planner.program import events
from planner.program.events import Link, Operation, OperationKind, Program, Stream, Wait
from planner.simulate.decided import Holds

NOTHING = -1
"""Nothing but the order of the stream."""
ISSUE = -2
"""The CPU had not issued the operation, or not all of its kernels."""

Run = tuple[int, int, int, int, int]
"""Of an operation that ran: event index, CPU clock when its issue begins, start, end, and what set the start: an
event index, `NOTHING` or `ISSUE`. A plain tuple, for one is made for every operation of every replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The compute stream idles before `before`, because of an operation of kind `cause` (None: the CPU)."""

    before: str
    cause: OperationKind | None
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The CPU issues nothing because it waits for the operation of an event."""

    event: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Clocks of a micro-batch."""

    program: Program
    runs: list[Run]
    host_waits: list[HostWait]
    """In order of time."""
    cpu_ns: int
    """Clock of the CPU at the end."""
    compute_ns: int
    """Clock of the compute stream at the end, with all that it waits for."""
    last_wait: int
    """Event index of what set it, or `NOTHING` when its last operation did."""

    @property
    def micro_batch_ns(self) -> int:
        """Compute has done all of its waits, and the CPU's clock has passed."""
        return max(self.compute_ns, self.cpu_ns)

    def stalls(self) -> Iterator[Stall]:
        """What fills the gaps between the operations of the compute stream, in order of time."""
        busy_until = 0
        for index, _, start, end, cause in self.runs:
            event = self.program.events[index]
            assert isinstance(event, Operation)
            if event.stream is not Stream.COMPUTE:
                continue
            yield from self._gap(event.owner, cause, busy_until, start)
            yield from self._gap(event.owner, ISSUE, start + event.duration_ns, end)
            busy_until = end
        yield from self._gap("end of backward", self.last_wait, busy_until, self.compute_ns)
        yield from self._gap("end of backward", ISSUE, max(busy_until, self.compute_ns), self.cpu_ns)

    def _gap(self, before: str, cause: int, start: int, end: int) -> Iterator[Stall]:
        if cause != ISSUE:
            yield from self._stall(before, None if cause == NOTHING else self.kind_of(cause), start, end)
            return
        first = bisect_right(self.host_waits, start, key=lambda wait: wait.end_ns)
        for wait in takewhile(lambda wait: wait.start_ns < end, islice(self.host_waits, first, None)):
            yield from self._stall(before, None, start, wait.start_ns)
            until = min(end, wait.end_ns)
            yield from self._stall(before, self.kind_of(wait.event), max(start, wait.start_ns), until)
            start = until
        yield from self._stall(before, None, start, end)

    def kind_of(self, index: int) -> OperationKind:
        """Kind of the operation of an event."""
        event = self.program.events[index]
        assert isinstance(event, Operation)
        return event.kind

    @staticmethod
    def _stall(before: str, cause: OperationKind | None, start: int, end: int) -> Iterator[Stall]:
        if end > start:
            yield Stall(before=before, cause=cause, start_ns=start, duration_ns=end - start)


def timing_of(program: Program, holds: Holds) -> Timing:
    """Run the operations of a program."""
    clocks = _Clocks(program.launch_ns)
    for index, event in enumerate(program.events):
        if isinstance(event, Operation):
            if not event.when or holds(event.when):
                clocks.run(index, event)
        elif isinstance(event, Wait):
            if not event.when or holds(event.when):
                clocks.wait(event)
        elif isinstance(event, events.HostWait) and (not event.when or holds(event.when)):
            clocks.host_wait(event.operation)
    return Timing(
        program=program,
        runs=clocks.runs,
        host_waits=clocks.host_waits,
        cpu_ns=clocks.cpu_ns,
        compute_ns=clocks.streams[Stream.COMPUTE],
        last_wait=clocks.last_wait,
    )


@dataclass(slots=True)
class _Clocks:
    launch_ns: int
    cpu_ns: int = 0
    streams: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    links: dict[Link, int] = field(default_factory=lambda: dict.fromkeys(Link, 0))
    ends: dict[int, int] = field(default_factory=dict)
    """Of operations, by event index."""
    last_wait: int = NOTHING
    """What set the clock of the compute stream, since its last operation."""
    runs: list[Run] = field(default_factory=list)
    host_waits: list[HostWait] = field(default_factory=list)

    def run(self, index: int, event: Operation) -> None:
        stream, issue_ns = event.stream, self.cpu_ns
        ready, cause = self._ready(event, issue_ns)
        issued_ns = issue_ns + event.launches * self.launch_ns
        end = max(ready + event.duration_ns, issued_ns)
        self.streams[stream] = self.ends[index] = end
        if event.link is not None:
            self.links[event.link] = end
        self.runs.append((index, issue_ns, ready, end, cause))
        self.cpu_ns = issued_ns
        if event.host_waits:
            self.host_wait(index)

    def _ready(self, event: Operation, issue_ns: int) -> tuple[int, int]:
        """When an operation can start, and what decides that."""
        start, cause = self.streams[event.stream], NOTHING
        if event.stream is Stream.COMPUTE:
            cause, self.last_wait = self.last_wait, NOTHING
        for operation in event.waits:
            end = self.ends.get(operation, 0)
            if end > start:
                start, cause = end, operation
        if event.link is not None and self.links[event.link] > start:
            start = self.links[event.link]
        issued_ns = issue_ns + self.launch_ns if event.launches else issue_ns
        return (issued_ns, ISSUE) if issued_ns > start else (start, cause)

    def wait(self, event: Wait) -> None:
        end = self.ends.get(event.operation, 0)
        if end > self.streams[event.stream]:
            self.streams[event.stream] = end
            if event.stream is Stream.COMPUTE:
                self.last_wait = event.operation

    def host_wait(self, operation: int) -> None:
        end = self.ends.get(operation, 0)
        if end > self.cpu_ns:
            self.host_waits.append(HostWait(event=operation, start_ns=self.cpu_ns, end_ns=end))
            self.cpu_ns = end
