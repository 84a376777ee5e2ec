"""Allocated memory over the step, thinned out without losing a peak."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.schema import MemoryCategory
from planner.simulate.memory import MemoryPoint
from planner.simulate.timeline import Timeline
from planner.simulate.trace import timed_points


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Allocated bytes at one moment of a step."""

    time_ns: int
    point: MemoryPoint

    def bytes_of(self, category: MemoryCategory) -> int:
        """Allocated for a category."""
        return self.point.by_category_bytes.get(category, 0)


def memory_samples(timeline: Timeline) -> tuple[MemorySample, ...]:
    """Every allocation point of the step in order; times by the convention of `trace.timed_points`."""
    return tuple(
        MemorySample(time_ns=round(start_ns + time_ns), point=point)
        for start_ns, run, _ in timeline.placed()
        for time_ns, point in timed_points(run)
    )


def thinned(samples: Sequence[MemorySample], most: int) -> tuple[MemorySample, ...]:
    """About `most` of the samples: first and last, of each stretch of time the highest and the lowest total, and
    the highest of each category over the whole step. The first highest total of all is always among them.
    """
    if len(samples) <= most:
        return tuple(samples)
    kept = {0, len(samples) - 1}
    for stretch in _stretches(samples, max(1, most // 2)):
        kept.add(max(stretch, key=lambda index: samples[index].point.total_bytes))
        kept.add(min(stretch, key=lambda index: samples[index].point.total_bytes))
    for category in MemoryCategory:
        kept.add(max(range(len(samples)), key=lambda index: samples[index].bytes_of(category)))
    return tuple(samples[index] for index in sorted(kept))


def _stretches(samples: Sequence[MemorySample], number: int) -> Iterator[list[int]]:
    """Indices of the samples in each of so many equal stretches of time, empty ones left out."""
    first, last = samples[0].time_ns, samples[-1].time_ns
    width = (last - first) // number + 1
    stretch: list[int] = []
    place = 0
    for index, sample in enumerate(samples):
        now = (sample.time_ns - first) // width
        if now != place and stretch:
            yield stretch
            stretch = []
        place = now
        stretch.append(index)
    yield stretch
