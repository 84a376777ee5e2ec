"""Charts as tables, for who cannot see them: the same numbers as the API gives."""

from dataclasses import dataclass

from api.http.simulations.views import MemoryOverStep
from api.service.simulations import Step
from planner.schema import MemoryCategory
from planner.simulate.streams import STALLS

TABLE_POINTS = 24
CATEGORY_NAMES = {category: category.value.replace("_", " ") for category in MemoryCategory}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Memory at one moment."""

    time_ns: int
    moment: str
    sizes_bytes: tuple[int, ...]
    """Of each category that is used, in the order of the table."""
    total_bytes: int
    is_peak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Memory at some moments of a step, the peak among them."""

    categories: tuple[MemoryCategory, ...]
    rows: tuple[MemoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRow:
    """What a stream does in all: like micro-batches counted once."""

    name: str
    num: int
    busy_ns: int
    share: float
    """Of the time that is shown."""


def memory_table(step: Step) -> MemoryTable:
    """About `TABLE_POINTS` moments."""
    shown = MemoryOverStep.of(step, TABLE_POINTS)
    categories = tuple(shown.by_category_bytes)
    return MemoryTable(
        categories=categories,
        rows=tuple(
            MemoryRow(
                time_ns=time_ns,
                moment=shown.moments[index],
                sizes_bytes=tuple(shown.by_category_bytes[category][index] for category in categories),
                total_bytes=shown.total_bytes[index],
                is_peak=index == shown.peak_index,
            )
            for index, time_ns in enumerate(shown.times_ns)
        ),
    )


def track_rows(step: Step) -> tuple[TrackRow, ...]:
    """One row for each stream, without the stalls."""
    return tuple(
        TrackRow(
            name=track.replace("_", " "),
            num=sum(one.num for one in work),
            busy_ns=sum(one.busy_ns for one in work),
            share=sum(one.busy_ns for one in work) / max(1, step.shown_ns),
        )
        for track, work in step.tracks.items()
        if track != STALLS
    )
