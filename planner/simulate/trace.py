"""A replay as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One track for the CPU, one for each stream, one for what the compute stream waits for, and counters of memory.

[Note: time of a memory point] A program orders allocations by issue, not by time: the host, which may be far ahead
of the device, makes them when it issues the operation that needs them. The trace shows a point beside the compute
that it is for: points between two operations of the compute stream are spread evenly over the second one.
"""

from collections.abc import Iterator
from typing import Any

from planner.program.events import Stream
from planner.schema import MemoryCategory
from planner.simulate.replay import MemoryPoint, Replay, Span

TraceEvent = dict[str, Any]

_PROCESS = 1
_CPU = 0
_STALLS = len(Stream) + 1
_TRACKS = {
    "CPU": _CPU,
    **{stream.value: number for number, stream in enumerate(Stream, start=1)},
    "stalls": _STALLS,
}


def chrome_trace(run: Replay, *, name: str, optimizer_ns: int = 0) -> dict[str, Any]:
    """Trace of one micro-batch, followed by the optimizer step.

    Args:
        run: a replay with `points=True`.
        name: title of the process.
        optimizer_ns: duration of the optimizer step.

    Returns:
        A JSON object of the Trace Event Format; times in microseconds, counters in bytes.
    """
    events = [
        *_titles(name),
        *_operations(run),
        *_stalls(run),
        _slice("compute", "optimizer step", run.micro_batch_ns, optimizer_ns),
        *_counters(run),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"micro_batch_ns": run.micro_batch_ns}}


def _titles(name: str) -> Iterator[TraceEvent]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": name}}
    for track, number in _TRACKS.items():
        shared = {"ph": "M", "pid": _PROCESS, "tid": number}
        yield shared | {"name": "thread_name", "args": {"name": track}}
        yield shared | {"name": "thread_sort_index", "args": {"sort_index": number}}


def _operations(run: Replay) -> Iterator[TraceEvent]:
    for span in run.spans:
        label = f"{span.kind} {span.owner}"
        details = {"duration_ns": span.duration_ns, "issued_us": span.issue_ns / 1000}
        yield _slice(span.stream.value, label, span.start_ns, span.end_ns - span.start_ns, details)
        if span.launch_ns:
            yield _slice("CPU", label, span.issue_ns, span.launch_ns)


def _stalls(run: Replay) -> Iterator[TraceEvent]:
    for stall in run.stalls:
        cause = stall.cause.value if stall.cause is not None else "launch"
        yield _slice("stalls", f"waits for {cause}", stall.start_ns, stall.duration_ns, {"before": stall.before})


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


def _counters(run: Replay) -> Iterator[TraceEvent]:
    for time_ns, point in _timed(run):
        sizes = {category.value: point.by_category_bytes.get(category, 0) for category in MemoryCategory}
        shared = {"ph": "C", "pid": _PROCESS, "ts": time_ns / 1000}
        yield shared | {"name": "memory", "args": sizes}
        yield shared | {"name": "memory in all", "args": {"bytes": point.total_bytes}}


def _timed(run: Replay) -> Iterator[tuple[float, MemoryPoint]]:
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
