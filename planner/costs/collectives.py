"""Time of a collective as a function of the full buffer's size: measured, or alpha-beta from data sheets."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from planner.costs.efficiency import LINK_PERCENT
from planner.costs.rates import NS_PER_S, time_ns
from planner.costs.topology import Group
from planner.schema import (
    CollectiveMeasurement,
    CurvePoint,
    InconsistentRequest,
    LinkSheet,
    NumberSource,
    Profile,
    SourcedNumber,
)

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]


class Curve(Protocol):
    """Time of one collective over one group; never decreases with the size."""

    def time_ns(self, size_bytes: int) -> int:
        """Nanoseconds for a full (gathered) buffer of `size_bytes`; 0 for 0 bytes."""

    def sources(self, name: str) -> tuple[SourcedNumber, ...]:
        """The numbers it rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoTransfer:
    """A group of one rank."""

    def time_ns(self, size_bytes: int) -> int:
        """Always 0."""
        return 0

    def sources(self, name: str) -> tuple[SourcedNumber, ...]:
        """Nothing."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A ring over `num_ranks`, in which each passes `sent / of` of the buffer to the next, in parts."""

    link: LinkSheet
    num_ranks: int
    sent: int
    of: int

    @property
    def latency_ns(self) -> int:
        """One latency for each step of the ring."""
        return (self.num_ranks - 1) * self.link.latency_ns

    def transfer_ns(self, size_bytes: int) -> int:
        """Time on the wire at the attainable share of the link."""
        return time_ns(size_bytes * self.sent, self.link.bytes_per_s * self.of, percent=LINK_PERCENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """`passes * (sum of the latencies of all levels + transfer of the slowest level)`.

    Ring over `p` ranks with latency `a` and bandwidth `b`, buffer of `M` bytes: an all-gather or a reduce-scatter
    takes `(p - 1) a + M (p - 1) / (p b)`, which no algorithm beats in bandwidth; an all-reduce is one of each
    (Thakur, Rabenseifner and Gropp, https://doi.org/10.1177/1094342005051521; Patarasuk and Yuan,
    https://doi.org/10.1016/j.jpdc.2008.09.002).

    Over `N` nodes with `L` ranks on each, the levels are pipelined: between nodes, ranks of equal place gather
    `1 / L` of the buffer, each over its own network card, `(N - 1) a' + (M / L) (N - 1) / (N b')`; within a node
    the parts are spread, `(L - 1) a + M (L - 1) / (L b)`. Bandwidth is that of the slower level, latencies add up.
    A group that lies unevenly on nodes runs one ring over all its ranks at the speed of the link between nodes.
    """

    levels: tuple[Level, ...]
    passes: int

    @classmethod
    def of(cls, group: Group, *, passes: int) -> Self:
        """The levels of a group of at least two ranks."""
        if group.inter is None or not group.is_even:
            p = group.num_ranks
            return cls(levels=(Level(link=group.link, num_ranks=p, sent=p - 1, of=p),), passes=passes)
        nodes, local = group.num_nodes, group.ranks_per_node
        levels = [Level(link=group.inter, num_ranks=nodes, sent=nodes - 1, of=nodes * local)]
        if local > 1:
            levels.append(Level(link=group.intra, num_ranks=local, sent=local - 1, of=local))
        return cls(levels=tuple(levels), passes=passes)

    def time_ns(self, size_bytes: int) -> int:
        """See the class."""
        if size_bytes == 0:
            return 0
        latency = sum(level.latency_ns for level in self.levels)
        return self.passes * (latency + max(level.transfer_ns(size_bytes) for level in self.levels))

    def sources(self, name: str) -> tuple[SourcedNumber, ...]:
        """Rate and latency of each level's link."""
        numbers = []
        for level in self.levels:
            of = f"{name} over {level.link.name}"
            rate = level.link.bytes_per_s * LINK_PERCENT // 100
            numbers += [
                SourcedNumber(name=f"{of}: rate", value=rate, unit="bytes_per_s", source=NumberSource.ASSUMED),
                SourcedNumber(
                    name=f"{of}: latency", value=level.link.latency_ns, unit="ns", source=NumberSource.ASSUMED
                ),
            ]
        return tuple(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Straight lines between measured points.

    Below the first point its time holds (latency); beyond the last one time grows with its bandwidth. Where noise
    made a larger size faster, the time of the smaller one holds.
    """

    sizes_bytes: tuple[int, ...]
    times_ns: tuple[int, ...]

    @classmethod
    def of(cls, points: Iterable[CurvePoint], *, path: str) -> Self:
        """Sort the points; of equal sizes the slower counts.

        Raises:
            InconsistentRequest: no point has a positive size and a positive time; `path` names the curve.
        """
        slowest: dict[int, int] = {}
        for point in points:
            slowest[point.size_bytes] = max(point.duration_ns, slowest.get(point.size_bytes, 0))
        sizes = sorted(slowest)
        times: list[int] = []
        for size in sizes:
            times.append(max(slowest[size], times[-1] if times else 0))
        if sizes[-1] == 0 or times[-1] == 0:
            raise InconsistentRequest(
                f"{path}.points has no point with size_bytes and duration_ns above 0; measure one or leave it out"
            )
        return cls(sizes_bytes=tuple(sizes), times_ns=tuple(times))

    def time_ns(self, size_bytes: int) -> int:
        """See the class."""
        if size_bytes == 0:
            return 0
        sizes, times = self.sizes_bytes, self.times_ns
        if size_bytes >= sizes[-1]:
            return -(-times[-1] * size_bytes // sizes[-1])
        right = bisect_left(sizes, size_bytes)
        if right == 0:
            return times[0]
        left = right - 1
        rise = (times[right] - times[left]) * (size_bytes - sizes[left])
        return times[left] - (-rise // (sizes[right] - sizes[left]))

    def sources(self, name: str) -> tuple[SourcedNumber, ...]:
        """Bandwidth at the largest size."""
        rate = self.sizes_bytes[-1] * NS_PER_S // self.times_ns[-1]
        return (SourcedNumber(name=f"{name}: rate", value=rate, unit="bytes_per_s", source=NumberSource.MEASURED),)


def collective_curve(collective: Collective, group: Group, profile: Profile | None) -> Curve:
    """The measured curve of this collective over as many ranks and nodes, else alpha-beta.

    Raises:
        InconsistentRequest: the measured curve has no usable point.
    """
    if group.num_ranks == 1:
        return NoTransfer()
    matching = [
        (index, measurement)
        for index, measurement in enumerate(profile.collectives if profile else ())
        if _is_of(measurement, collective, group)
    ]
    if matching:
        points = [point for _, measurement in matching for point in measurement.points]
        return MeasuredCurve.of(points, path=f"profile.collectives[{matching[0][0]}]")
    return AlphaBeta.of(group, passes=2 if collective == "all_reduce" else 1)


def _is_of(measurement: CollectiveMeasurement, collective: Collective, group: Group) -> bool:
    return (
        measurement.collective == collective
        and measurement.num_ranks == group.num_ranks
        and measurement.num_nodes == group.num_nodes
    )
