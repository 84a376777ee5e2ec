"""Replays as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One track for the CPU, one for each stream, one for what the compute stream waits for, and counters of memory.
Copies to and from the host run on the streams that issue them. Micro-batches follow one another, the optimizer step
last.

[Note: time of a memory point] A program orders allocations by issue, not by time: the host, which may be far ahead
of the device, makes them when it issues the operation that needs them. The trace shows a point beside the compute
that it is for: points between two operations of the compute stream are spread evenly over the second one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from planner.program.events import OperationKind, Stream
from planner.schema import MemoryCategory
from planner.simulate.memory import MemoryPoint
from planner.simulate.replay import Replay, Span

TraceEvent = dict[str, Any]

_PROCESS = 1
_CPU = 0
_STALLS = len(Stream) + 1
_TRACKS = {
    "CPU": _CPU,
    **{stream.value: number for number, stream in enumerate(Stream, start=1)},
    "stalls": _STALLS,
}


def chrome_trace(
    runs: Sequence[Replay], *, name: str, optimizer_ns: int = 0, cpu_optimizer_ns: int = 0
) -> dict[str, Any]:
    """Trace of micro-batches that follow one another, and of the optimizer step after them.

    Args:
        runs: replays with `points=True`.
        name: title of the process.
        optimizer_ns: duration of the optimizer step.
        cpu_optimizer_ns: the last part of it, which the host runs for shards in its memory.

    Returns:
        A JSON object of the Trace Event Format; times in microseconds, counters in bytes.
    """
    events = list(_titles(name))
    start_ns = 0
    for run in runs:
        events += [
            *_operations(run, start_ns),
            *_cpu(run, start_ns),
            *_stalls(run, start_ns),
            *_counters(run, start_ns),
        ]
        start_ns += run.micro_batch_ns
    device_ns = optimizer_ns - cpu_optimizer_ns
    events.append(_slice("compute", "optimizer step", start_ns, device_ns))
    if cpu_optimizer_ns:
        events.append(_slice("CPU", "optimizer step", start_ns + device_ns, cpu_optimizer_ns))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"micro_batches_ns": [run.micro_batch_ns for run in runs]},
    }


def _titles(name: str) -> Iterator[TraceEvent]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": name}}
    for track, number in _TRACKS.items():
        shared = {"ph": "M", "pid": _PROCESS, "tid": number}
        yield shared | {"name": "thread_name", "args": {"name": track}}
        yield shared | {"name": "thread_sort_index", "args": {"sort_index": number}}


def _operations(run: Replay, offset_ns: int) -> Iterator[TraceEvent]:
    for span in run.spans:
        if span.kind is OperationKind.MARK:
            continue
        details = {"duration_ns": span.duration_ns, "issued_us": (offset_ns + span.issue_ns) / 1000}
        length_ns = span.end_ns - span.start_ns
        yield _slice(span.stream.value, _label(span), offset_ns + span.start_ns, length_ns, details)


def _cpu(run: Replay, offset_ns: int) -> Iterator[TraceEvent]:
    """What the CPU issues and what it waits for, in order of time."""
    issued = [(span.issue_ns, span.launch_ns, _label(span)) for span in run.spans if span.launch_ns]
    waited = [
        (wait.start_ns, wait.end_ns - wait.start_ns, f"waits for {run.timing.kind_of(wait.event)}")
        for wait in run.timing.host_waits
    ]
    for start_ns, length_ns, label in sorted(issued + waited, key=lambda piece: piece[0]):
        yield _slice("CPU", label, offset_ns + start_ns, length_ns)


def _label(span: Span) -> str:
    return f"{span.kind} {span.owner}"


def _stalls(run: Replay, offset_ns: int) -> Iterator[TraceEvent]:
    for stall in run.stalls:
        cause = stall.cause.value if stall.cause is not None else "launch"
        start_ns, details = offset_ns + stall.start_ns, {"before": stall.before}
        yield _slice("stalls", f"waits for {cause}", start_ns, stall.duration_ns, details)


def _slice(
    track: str, name: str, start_ns: int, duration_ns: int, details: dict[str, Any] | None = None
) -> TraceEvent:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": _TRACKS[track],
        "name": name,
        "ts": start_ns / 1000,
        "dur": duration_ns / 1000,
        "args": details or {},
    }


def _counters(run: Replay, offset_ns: int) -> Iterator[TraceEvent]:
    for time_ns, point in timed_points(run):
        sizes = {category.value: point.by_category_bytes.get(category, 0) for category in MemoryCategory}
        shared = {"ph": "C", "pid": _PROCESS, "ts": (offset_ns + time_ns) / 1000}
        yield shared | {"name": "memory", "args": sizes}
        yield shared | {"name": "memory in all", "args": {"bytes": point.total_bytes}}


def timed_points(run: Replay) -> Iterator[tuple[float, MemoryPoint]]:
    """Memory points with the time (ns) that they are shown at, which is a convention: see the note above."""
    points = iter(run.points)
    point = next(points, None)
    for span in (span for span in run.spans if span.stream is Stream.COMPUTE):
        ahead: list[MemoryPoint] = []
        while point is not None and point.event < span.event:
            ahead.append(point)
            point = next(points, None)
        yield from _spread(ahead, span)
    while point is not None:
        yield float(run.micro_batch_ns), point
        point = next(points, None)


def _spread(points: list[MemoryPoint], span: Span) -> Iterator[tuple[float, MemoryPoint]]:
    step_ns = (span.end_ns - span.start_ns) / max(1, len(points))
    return ((span.start_ns + number * step_ns, point) for number, point in enumerate(points))
