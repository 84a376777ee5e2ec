"""Replay a program whose conditions are all decided: times of every operation, memory at every point."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.program.choices import Condition
from planner.program.events import Allocate, Free, Link, Operation, OperationKind, Program, Stream, Touch, Wait
from planner.schema import MemoryCategory


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
class Stall:
    """The compute stream idles before `before`, because of an operation of kind `cause` (None: the CPU)."""

    before: str
    cause: OperationKind | None
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Allocated bytes by category right after one allocation."""

    moment: str
    event: int
    by_category_bytes: dict[MemoryCategory, int]
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay."""

    micro_batch_ns: int
    spans: tuple[Span, ...]
    stalls: tuple[Stall, ...]
    pools_bytes: dict[Stream, int]
    pool_moments: dict[Stream, str]
    peak: MemoryPoint
    points: tuple[MemoryPoint, ...]
    """Every allocation point, in issue order; empty unless asked for."""

    @property
    def reserved_bytes(self) -> int:
        """Sum of the pool peaks."""
        return sum(self.pools_bytes.values())

    def count(self, kind: OperationKind) -> int:
        """Operations of a kind that ran."""
        return sum(span.kind is kind for span in self.spans)

    def busy_ns(self, kind: OperationKind) -> int:
        """Time spent in operations of a kind."""
        return sum(span.duration_ns for span in self.spans if span.kind is kind)


def replay(
    program: Program, *, holds: Callable[[Condition], bool] = lambda condition: not condition, points: bool = False
) -> Replay:
    """Run a program.

    Args:
        program: from `planner.program.build_program`.
        holds: whether a condition is true; the default suits programs whose knobs are all fixed.
        points: keep the memory at every allocation point (for timelines).
    """
    clock = _Clock(program.launch_ns)
    memory = _Memory(keep=points)
    for index, event in enumerate(program.events):
        if not holds(event.when):
            continue
        match event:
            case Operation():
                clock.run(index, event)
            case Wait():
                clock.wait(event)
            case Allocate():
                memory.allocate(index, event)
            case Free():
                memory.free(event.buffer)
            case Touch():
                memory.touch(index, event)
    return Replay(
        micro_batch_ns=clock.finish(),
        spans=tuple(clock.spans),
        stalls=tuple(clock.stalls),
        pools_bytes=dict(memory.pool_peaks),
        pool_moments=dict(memory.pool_moments),
        peak=memory.peak(),
        points=tuple(memory.points),
    )


@dataclass(slots=True)
class _Clock:
    launch_ns: int
    cpu_ns: int = 0
    streams: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    links: dict[Link, int] = field(default_factory=lambda: defaultdict(int))
    ends: dict[int, tuple[int, OperationKind]] = field(default_factory=dict)
    busy_until_ns: int = 0
    cause: OperationKind | None = None
    spans: list[Span] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)

    def run(self, index: int, event: Operation) -> None:
        issue_ns = self.cpu_ns
        issued = issue_ns + (self.launch_ns if event.launches else 0)
        self.cpu_ns += event.launches * self.launch_ns
        start, cause = self.streams[event.stream], self.cause
        for operation in event.waits:
            end, kind = self.ends.get(operation, (0, None))
            if end > start:
                start, cause = end, kind
        if event.link is not None:
            start = max(start, self.links[event.link])
        if issued > start:
            start, cause = issued, None
        end = max(start + event.duration_ns, self.cpu_ns)
        if event.stream is Stream.COMPUTE:
            self._stall(event.owner, start, cause)
            if end > start + event.duration_ns:
                ready = start + event.duration_ns
                self.stalls.append(Stall(before=event.owner, cause=None, start_ns=ready, duration_ns=end - ready))
            self.busy_until_ns = end
            self.cause = None
        self.streams[event.stream] = end
        if event.link is not None:
            self.links[event.link] = end
        self.ends[index] = (end, event.kind)
        if event.host_waits:
            self.cpu_ns = max(self.cpu_ns, end)
        self.spans.append(
            Span(
                kind=event.kind,
                owner=event.owner,
                stream=event.stream,
                event=index,
                issue_ns=issue_ns,
                launch_ns=event.launches * self.launch_ns,
                start_ns=start,
                end_ns=end,
                duration_ns=event.duration_ns,
            )
        )

    def wait(self, event: Wait) -> None:
        end, kind = self.ends.get(event.operation, (0, None))
        if end > self.streams[event.stream]:
            self.streams[event.stream] = end
            if event.stream is Stream.COMPUTE:
                self.cause = kind

    def _stall(self, before: str, start: int, cause: OperationKind | None) -> None:
        if start > self.busy_until_ns:
            idle_ns = start - self.busy_until_ns
            self.stalls.append(Stall(before=before, cause=cause, start_ns=self.busy_until_ns, duration_ns=idle_ns))

    def finish(self) -> int:
        end = self.streams[Stream.COMPUTE]
        self._stall("end of backward", end, self.cause)
        if self.cpu_ns > end:
            self.busy_until_ns = max(self.busy_until_ns, end)
            self._stall("end of backward", self.cpu_ns, None)
        return max(end, self.cpu_ns)


@dataclass(slots=True)
class _Memory:
    keep: bool
    alive: dict[str, Allocate] = field(default_factory=dict)
    pools: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    categories: dict[MemoryCategory, int] = field(default_factory=lambda: defaultdict(int))
    total: int = 0
    pool_peaks: dict[Stream, int] = field(default_factory=lambda: defaultdict(int))
    pool_moments: dict[Stream, str] = field(default_factory=dict)
    points: list[MemoryPoint] = field(default_factory=list)
    best: MemoryPoint | None = None

    def allocate(self, index: int, event: Allocate) -> None:
        assert event.buffer not in self.alive, f"{event.buffer} is alive already"
        self.alive[event.buffer] = event
        self.pools[event.stream] += event.size_bytes
        self.categories[event.category] += event.size_bytes
        self.total += event.size_bytes
        self._observe(index, event.moment, event.stream, ())

    def free(self, buffer: str) -> None:
        event = self.alive.pop(buffer, None)
        if event is None:
            return
        self.pools[event.stream] -= event.size_bytes
        self.categories[event.category] -= event.size_bytes
        self.total -= event.size_bytes

    def touch(self, index: int, event: Touch) -> None:
        self._observe(index, event.moment, Stream.COMPUTE, event.parts)

    def _observe(
        self, index: int, moment: str, stream: Stream, parts: tuple[tuple[MemoryCategory, int], ...]
    ) -> None:
        extra = sum(size for _, size in parts)
        if self.pools[stream] + extra > self.pool_peaks[stream]:
            self.pool_peaks[stream] = self.pools[stream] + extra
            self.pool_moments[stream] = moment
        total = self.total + extra
        highest = self.best is None or total > self.best.total_bytes
        if not highest and not self.keep:
            return
        by_category = {category: size for category, size in self.categories.items() if size}
        for category, size in parts:
            if size:
                by_category[category] = by_category.get(category, 0) + size
        point = MemoryPoint(moment=moment, event=index, by_category_bytes=by_category, total_bytes=total)
        if highest:
            self.best = point
        if self.keep:
            self.points.append(point)

    def peak(self) -> MemoryPoint:
        return self.best or MemoryPoint(moment="", event=0, by_category_bytes={}, total_bytes=0)
