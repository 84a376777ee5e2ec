"""What every stream does over the step, and what the compute stream waits for, in as much detail as has room."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from planner.program.events import OperationKind, Stream
from planner.simulate.predict import exposed_part
from planner.simulate.timeline import Timeline

STALLS = "stalls"
"""Name of the track of stalls."""
CPU = "cpu"
"""Name of the track of the optimizer step's part on the host."""
OPTIMIZER = "optimizer"
LAUNCH = "launch"
"""Cause of a stall that no operation is: the CPU had issued nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stretch of a track: one operation, or several short ones that were put together."""

    start_ns: int
    end_ns: int
    busy_ns: int
    """Work in it; less than its length where operations were put together, or kernels were issued too slowly."""
    kind: str
    """Of the operation, or the one of them that takes most of the time; of a stall its cause."""
    owner: str
    """Unit or call; of a stall the operation that waits. Of several the first."""
    num: int = 1


def tracks_of(timeline: Timeline) -> dict[str, tuple[Work, ...]]:
    """All work of each stream that is used, in order of time, then the stalls of the compute stream."""
    found: dict[str, list[Work]] = {name: [] for name in (*(stream.value for stream in Stream), STALLS)}
    for offset_ns, run, _ in timeline.placed():
        for span in run.spans:
            if span.kind is not OperationKind.MARK:
                found[span.stream.value].append(
                    Work(
                        start_ns=offset_ns + span.start_ns,
                        end_ns=offset_ns + span.end_ns,
                        busy_ns=span.duration_ns,
                        kind=span.kind.value,
                        owner=span.owner,
                    )
                )
        for stall in run.stalls:
            start_ns = offset_ns + stall.start_ns
            cause = LAUNCH if stall.cause is None else stall.cause.value
            found[STALLS].append(
                Work(
                    start_ns=start_ns,
                    end_ns=start_ns + stall.duration_ns,
                    busy_ns=stall.duration_ns,
                    kind=cause,
                    owner=stall.before,
                )
            )
    device_ns = timeline.optimizer_ns - timeline.cpu_optimizer_ns
    found[Stream.COMPUTE.value] += _optimizer(timeline.optimizer_start_ns, device_ns)
    found[CPU] = _optimizer(timeline.optimizer_start_ns + device_ns, timeline.cpu_optimizer_ns)
    return {track: tuple(work) for track, work in found.items() if work}


def _optimizer(start_ns: int, duration_ns: int) -> list[Work]:
    if not duration_ns:
        return []
    end_ns = start_ns + duration_ns
    return [Work(start_ns=start_ns, end_ns=end_ns, busy_ns=duration_ns, kind=OPTIMIZER, owner="optimizer step")]


def stalled_ns(timeline: Timeline) -> dict[str, int]:
    """Stalls of the whole step by field of `StepBreakdown`: those of like micro-batches each counted."""
    totals: dict[str, int] = {}
    for run, num in timeline.runs:
        for stall in run.stalls:
            part = exposed_part(stall.cause)
            totals[part] = totals.get(part, 0) + num * stall.duration_ns
    return totals


def window(
    tracks: Mapping[str, Iterable[Work]], start_ns: int, end_ns: int, *, most: int
) -> dict[str, tuple[Work, ...]]:
    """The part of all tracks in `[start_ns, end_ns)`, at most about `most` pieces of work in each.

    Neighbours that are both shorter than a `most`-th of the window, and no further apart, are put together; stalls
    only where their cause is the same. Work is not cut at the borders of the window.
    """
    finest_ns = max(1, (end_ns - start_ns) // max(1, most))
    return {
        track: tuple(_merged(_within(work, start_ns, end_ns), finest_ns, keeps_kinds=track == STALLS))
        for track, work in tracks.items()
    }


def _within(work: Iterable[Work], start_ns: int, end_ns: int) -> Iterator[Work]:
    return (one for one in work if one.end_ns > start_ns and one.start_ns < end_ns)


def _merged(work: Iterable[Work], finest_ns: int, *, keeps_kinds: bool) -> Iterator[Work]:
    group: list[Work] = []
    for one in work:
        if group and (not _joins(group, one, finest_ns) or (keeps_kinds and one.kind != group[0].kind)):
            yield _together(group)
            group = []
        group.append(one)
    if group:
        yield _together(group)


def _joins(group: list[Work], one: Work, finest_ns: int) -> bool:
    """Whether a piece goes with those before it; a group is ended when it has become long enough to see."""
    is_short = one.end_ns - one.start_ns < finest_ns and group[-1].end_ns - group[-1].start_ns < finest_ns
    is_near = one.start_ns - group[-1].end_ns < finest_ns
    return is_short and is_near and group[-1].end_ns - group[0].start_ns < finest_ns


def _together(group: list[Work]) -> Work:
    if len(group) == 1:
        return group[0]
    by_kind: dict[str, int] = {}
    for one in group:
        by_kind[one.kind] = by_kind.get(one.kind, 0) + one.busy_ns
    return Work(
        start_ns=group[0].start_ns,
        end_ns=group[-1].end_ns,
        busy_ns=sum(one.busy_ns for one in group),
        kind=max(by_kind, key=lambda kind: by_kind[kind]),
        owner=group[0].owner,
        num=sum(one.num for one in group),
    )
