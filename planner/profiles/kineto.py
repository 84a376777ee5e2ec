"""A profile from a trace of torch's profiler (Kineto), recorded while FSDP2 trains without checkpointing.

[Note: what a trace tells] FSDP2 marks its hooks with `record_function`, e.g. `FSDP::pre_forward (layers.3)`. What
runs on a thread between the end of `pre_forward` and the start of `post_forward` of a unit is the forward of its
module; between `pre_backward` and `post_backward_accumulate` its backward (and its recomputation, where it is
checkpointed: record without). On an accelerator the kernels count that were launched meanwhile (those of NCCL
excepted), on a CPU the time itself. Kernels of NCCL say which collective they are, of how many elements and over
how many ranks; their time includes waiting for the slowest rank, so of each size the fastest counts.
"""

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from planner.profiles.errors import NoMeasurements
from planner.schema import InvalidDocument, ModelDescription, Profile

_HOOKS = "pre_forward|post_forward|pre_backward|post_backward_accumulate"
_MARK = re.compile(rf"FSDP::({_HOOKS})(?: \((.*?)\))?(?: \[.*)?$")
_BETWEEN = {"forward": ("pre_forward", "post_forward"), "backward": ("pre_backward", "post_backward_accumulate")}
_COLLECTIVES = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}
_ITEMSIZE = {"Float": 4, "BFloat16": 2, "Half": 2, "Double": 8, "Byte": 1, "Char": 1, "Int": 4, "Long": 8}

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Between two hooks of a unit on one thread, in microseconds of the trace."""

    path: str
    which: str
    thread: object
    start: float
    end: float


def read_trace(
    text: str | bytes, model: ModelDescription, *, micro_batch: int, sequence: int, name: str, source: str
) -> Profile:
    """Read a trace as `torch.profiler.profile(...).export_chrome_trace` writes it.

    Args:
        text: JSON of the trace.
        model: the description of what was trained; units must be single modules of its calls.
        micro_batch: sequences per rank in one forward of the trace.
        sequence: tokens per sequence of the trace.
        name: of the profile.
        source: names the trace in errors.

    Raises:
        InvalidDocument: the text is no trace.
        NoMeasurements: no unit of the model and no collective is in it.
    """
    events = _events(text, source)
    calls = _calls(events, model, micro_batch, sequence)
    curves = _curves(events)
    if not calls and not curves:
        raise NoMeasurements(
            f"{source} has neither hooks of FSDP2 around modules of {model.name!r} nor kernels of NCCL; record a "
            "step of training with torch.profiler and ProfilerActivity.CPU (and CUDA)"
        )
    return Profile.from_object({"name": name, "calls": calls, "collectives": curves}, source=source)


def _events(text: str | bytes, source: str) -> list[Event]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"{source} is not JSON: {error}") from None
    events = value.get("traceEvents") if isinstance(value, dict) else value
    if not isinstance(events, list):
        raise InvalidDocument(f"{source} has no traceEvents; export it with export_chrome_trace")
    return [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]


def _calls(
    events: Sequence[Event], model: ModelDescription, micro_batch: int, sequence: int
) -> list[dict[str, Any]]:
    kinds = {call.path: call.kind for call in model.calls}
    kernels = _kernels(events)
    times: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for span in _spans(events):
        kind = kinds.get(span.path)
        if kind is not None:
            taken = kernels.within(span) if kernels.exist else span.end - span.start
            times[kind][span.which].append(round(taken * 1e3))
    return [
        {
            "kind": kind,
            "micro_batch": micro_batch,
            "sequence": sequence,
            "provenance": {"num_samples": max(map(len, passes.values()))},
            **{f"{which}_ns": round(median(samples)) for which, samples in passes.items()},
        }
        for kind, passes in times.items()
    ]


def _spans(events: Sequence[Event]) -> Iterator[_Span]:
    """From the end of each first hook to the start of the next second one of the same unit on its thread."""
    marks: dict[tuple[object, str], list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        match = _MARK.match(str(event.get("name", "")))
        if match and event.get("cat") != "gpu_user_annotation":
            start = float(event["ts"])
            key = (event.get("tid"), match[2] or "")
            marks[key].append((start, start + float(event.get("dur", 0)), match[1]))
    for (thread, path), found in marks.items():
        opened: dict[str, float] = {}
        for start, end, hook in sorted(found):
            for which, (first, second) in _BETWEEN.items():
                if hook == first:
                    opened[which] = end
                elif hook == second and which in opened:
                    yield _Span(path=path, which=which, thread=thread, start=opened.pop(which), end=start)


class _Kernels:
    """Time of kernels by when and where the host launched them."""

    def __init__(self, launches: Mapping[object, list[tuple[float, float]]]) -> None:
        self._launches = {thread: sorted(found) for thread, found in launches.items()}
        self.exist = bool(launches)

    def within(self, span: _Span) -> float:
        """Microseconds of the kernels that were launched within a span."""
        launched = self._launches.get(span.thread, [])
        first = bisect_left(launched, (span.start, 0.0))
        last = bisect_left(launched, (span.end, 0.0))
        return sum(duration for _, duration in launched[first:last])


def _kernels(events: Sequence[Event]) -> _Kernels:
    taken: dict[object, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "nccl" not in str(event.get("name")):
            taken[event.get("args", {}).get("correlation")] += float(event.get("dur", 0))
    launches: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and correlation in taken:
            launches[event.get("tid")].append((float(event["ts"]), taken[correlation]))
    return _Kernels(launches)


def _curves(events: Sequence[Event]) -> list[dict[str, Any]]:
    fastest: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for event in events:
        found = _collective(event) if event.get("cat") == "kernel" else None
        if found is not None:
            name, num_ranks, size_bytes = found
            time = round(float(event.get("dur", 0)) * 1e3)
            sizes = fastest[name, num_ranks]
            sizes[size_bytes] = min(time, sizes.get(size_bytes, time))
    return [
        {
            "collective": name,
            "num_ranks": num_ranks,
            "points": [{"size_bytes": size, "duration_ns": time} for size, time in sorted(sizes.items())],
        }
        for (name, num_ranks), sizes in fastest.items()
    ]


def _collective(event: Event) -> tuple[str, int, int] | None:
    """Collective, ranks and bytes of the full buffer of a kernel of NCCL."""
    args = event.get("args", {})
    words = str(args.get("Collective name", "")).lower().replace("_", "")
    name = next((name for word, name in _COLLECTIVES.items() if word in words), None)
    itemsize = _ITEMSIZE.get(str(args.get("dtype")))
    if name is None or itemsize is None or "Group size" not in args:
        return None
    elements = max(int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0)))
    return name, int(args["Group size"]), elements * itemsize
