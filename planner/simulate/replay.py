"""Replay a program whose conditions are all decided: times of every operation, memory at every point.

Times and peaks are worked out at once; everything that explains them only when it is asked for, so that a replay
inside a loop costs no more than its loop over the events.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from planner.program.events import Operation, OperationKind, Program, Stream
from planner.simulate.clock import Stall, Timing, timing_of
from planner.simulate.decided import Holds, fixed
from planner.simulate.memory import MemoryPoint, Peaks, peaks_of, points_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One executed operation."""

    kind: OperationKind
    owner: str
    stream: Stream
    event: int
    """Its index in the program."""
    issue_ns: int
    """CPU clock when the host begins to issue it."""
    launch_ns: int
    """How long the host takes to issue its kernels."""
    start_ns: int
    end_ns: int
    """Later than `start_ns + duration_ns` when the CPU could not issue the kernels fast enough."""
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much of a micro-batch a stream, a link or the CPU works."""

    busy_ns: int
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Result of a replay."""

    program: Program
    holds: Holds
    timing: Timing
    peaks: Peaks
    points: tuple[MemoryPoint, ...] = ()
    """Every allocation point, in issue order; empty unless asked for."""

    @property
    def micro_batch_ns(self) -> int:
        """Duration of the micro-batch."""
        return self.timing.micro_batch_ns

    @property
    def pools_bytes(self) -> dict[Stream, int]:
        """Peak of each pool that is used."""
        return self.peaks.pools_bytes

    @property
    def reserved_bytes(self) -> int:
        """Sum of the pool peaks."""
        return sum(self.peaks.pools_bytes.values())

    @property
    def allocated_bytes(self) -> int:
        """Peak of the sum of the pools."""
        return self.peaks.total_bytes

    @cached_property
    def peak(self) -> MemoryPoint:
        """What is allocated at the worst moment."""
        at = points_of(self.program, self.holds, until=self.peaks.event)
        return next(at, MemoryPoint(moment="", event=0, by_category_bytes={}, total_bytes=0))

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every operation that ran, in issue order."""
        return tuple(
            Span(
                kind=operation.kind,
                owner=operation.owner,
                stream=operation.stream,
                event=index,
                issue_ns=issue_ns,
                launch_ns=operation.launches * self.program.launch_ns,
                start_ns=start_ns,
                end_ns=end_ns,
                duration_ns=operation.duration_ns,
            )
            for (index, issue_ns, start_ns, end_ns, _), operation in zip(
                self.timing.runs, self._operations, strict=True
            )
        )

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """What fills the gaps of the compute stream, in order of time."""
        return tuple(self.timing.stalls())

    @cached_property
    def _operations(self) -> tuple[Operation, ...]:
        events = [self.program.events[run[0]] for run in self.timing.runs]
        return tuple(event for event in events if isinstance(event, Operation))

    @cached_property
    def _by_kind(self) -> dict[OperationKind, tuple[int, int]]:
        """Number of operations and their time."""
        totals: dict[OperationKind, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for operation in self._operations:
            number, busy_ns = totals[operation.kind]
            totals[operation.kind] = (number + 1, busy_ns + operation.duration_ns)
        return dict(totals)

    def count(self, kind: OperationKind) -> int:
        """Operations of a kind that ran."""
        return self._by_kind.get(kind, (0, 0))[0]

    def busy_ns(self, kind: OperationKind) -> int:
        """Time spent in operations of a kind."""
        return self._by_kind.get(kind, (0, 0))[1]

    def uses(self) -> dict[str, Use]:
        """Work of every stream, of every link that is used (`link shard`), and of the CPU (`cpu`)."""
        busy: dict[str, int] = {stream.value: 0 for stream in Stream}
        busy["cpu"] = 0
        for operation in self._operations:
            busy[operation.stream.value] += operation.duration_ns
            busy["cpu"] += operation.launches * self.program.launch_ns
            if operation.link is not None:
                name = f"link {operation.link.value}"
                busy[name] = busy.get(name, 0) + operation.duration_ns
        return {name: Use(busy_ns=work, idle_ns=self.micro_batch_ns - work) for name, work in busy.items()}


def replay(program: Program, *, holds: Holds = fixed, points: bool = False) -> Replay:
    """Run a program.

    Args:
        program: from `planner.program.build_program`.
        holds: whether a condition is true; the default suits programs whose knobs are all fixed.
        points: keep the memory at every allocation point (for timelines).
    """
    return Replay(
        program=program,
        holds=holds,
        timing=timing_of(program, holds),
        peaks=peaks_of(program, holds),
        points=tuple(points_of(program, holds)) if points else (),
    )
