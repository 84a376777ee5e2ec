"""The events of a program, in the order in which they are written down."""

from planner.program.choices import ALWAYS, Condition
from planner.program.events import (
    Allocate,
    Event,
    Free,
    HostWait,
    Link,
    Operation,
    OperationKind,
    Phase,
    Stream,
    Touch,
    Wait,
)
from planner.program.units import Partition
from planner.schema import HostRuns, MemoryCategory


class Emitter:
    """Writes events; operations are known by the index of their event."""

    def __init__(self, partition: Partition, host_runs: HostRuns = HostRuns.NOTHING) -> None:
        self.events: list[Event] = []
        self.phase = Phase.FORWARD
        self._names = tuple(unit.name for unit in partition.units)
        self._host_runs = host_runs

    def last_of(self, stream: Stream) -> int | None:
        """Index of the latest operation of a stream."""
        return next(iter(self.latest_of(stream)), None)

    def latest_of(self, stream: Stream) -> tuple[int, ...]:
        """The latest operation of a stream under every assignment: the last one, and those before it up to the
        first that is always there.
        """
        found: list[int] = []
        for index in reversed(range(len(self.events))):
            event = self.events[index]
            if isinstance(event, Operation) and event.stream is stream:
                found.append(index)
                if not event.when:
                    break
        return tuple(found)

    def name(self, unit: int) -> str:
        """Title of a unit."""
        return self._names[unit]

    def operation(
        self,
        kind: OperationKind,
        unit: int,
        stream: Stream,
        duration_ns: int,
        *,
        owner: str | None = None,
        phase: Phase | None = None,
        size_bytes: int = 0,
        launches: int = 1,
        link: Link | None = None,
        waits: tuple[int, ...] = (),
        host_waits: bool = False,
        when: Condition = ALWAYS,
    ) -> int:
        """Issue an operation; it belongs to its unit unless `owner` says otherwise.

        A CPU that runs it itself waits for what it follows before it begins to launch it.
        """
        if self._host_runs is HostRuns.KERNELS and link is None:
            self.events.extend(HostWait(operation=before, when=when) for before in waits)
        self.events.append(
            Operation(
                kind=kind,
                owner=self._names[unit] if owner is None else owner,
                unit=unit,
                phase=phase or self.phase,
                stream=stream,
                duration_ns=duration_ns,
                size_bytes=size_bytes,
                launches=launches,
                link=link,
                waits=waits,
                host_waits=host_waits or self._is_run_by_host(link),
                when=when,
            )
        )
        return len(self.events) - 1

    def _is_run_by_host(self, link: Link | None) -> bool:
        return self._host_runs is HostRuns.EVERYTHING or (self._host_runs is HostRuns.KERNELS and link is None)

    def wait(self, stream: Stream, operation: int, when: Condition = ALWAYS) -> None:
        """Let later operations of a stream follow an operation; a CPU that computes itself waits too."""
        self.events.append(Wait(stream=stream, operation=operation, when=when))
        if self._host_runs is HostRuns.KERNELS and stream is Stream.COMPUTE:
            self.events.append(HostWait(operation=operation, when=when))

    def host_wait(self, operation: int) -> None:
        """Let the CPU wait for an operation."""
        self.events.append(HostWait(operation=operation))

    def allocate(
        self,
        buffer: str,
        stream: Stream,
        category: MemoryCategory,
        size_bytes: int,
        moment: str,
        when: Condition = ALWAYS,
    ) -> None:
        """Allocate a buffer; none of no bytes."""
        if size_bytes:
            self.events.append(
                Allocate(
                    buffer=buffer,
                    stream=stream,
                    category=category,
                    size_bytes=size_bytes,
                    moment=moment,
                    when=when,
                )
            )

    def free(self, buffer: str, when: Condition = ALWAYS) -> None:
        """Free a buffer if it is alive."""
        self.events.append(Free(buffer=buffer, when=when))

    def touch(self, parts: tuple[tuple[MemoryCategory, int], ...], moment: str, when: Condition = ALWAYS) -> None:
        """Say that these bytes are alive for a moment, besides all buffers."""
        self.events.append(Touch(parts=parts, moment=moment, when=when))
