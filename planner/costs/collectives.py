"""Time of a collective as a function of the full buffer's size: measured, or alpha-beta from data sheets.

[Note: shapes that were not measured] Of the measured shapes over the same kind of link (within a node, or between
nodes), the one whose number of ranks is nearest counts, its times multiplied by the ratio of the two alpha-beta
times: what the link attains is taken from the measurement, what the number of ranks changes from the formula.
Otherwise a slow network would make meshes look fast that nobody measured.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Protocol, Self

from planner.costs.efficiency import LINK_PERCENT
from planner.costs.rates import NS_PER_S, time_ns
from planner.costs.topology import Group
from planner.schema import (
    CurvePoint,
    InconsistentRequest,
    LinkSheet,
    NumberSource,
    Profile,
    Quantiles,
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
    source: NumberSource = NumberSource.MEASURED
    basis: str = ""

    @classmethod
    def of(
        cls,
        points: Iterable[CurvePoint],
        *,
        path: str,
        source: NumberSource = NumberSource.MEASURED,
        basis: str = "",
    ) -> Self:
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
        return cls(sizes_bytes=tuple(sizes), times_ns=tuple(times), source=source, basis=basis)

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
        number = SourcedNumber(
            name=f"{name}: rate", value=rate, unit="bytes_per_s", source=self.source, basis=self.basis
        )
        return (number,)


def collective_curve(
    collective: Collective, group: Group, profile: Profile | None, *, robust: bool = False
) -> Curve:
    """The measured curve of this collective over as many ranks and nodes, else of another shape, else alpha-beta.

    Args:
        collective: which.
        group: over which ranks.
        profile: measurements.
        robust: 99th percentiles instead of medians, where there are any.

    Raises:
        InconsistentRequest: the measured curve has no usable point.
    """
    if group.num_ranks == 1:
        return NoTransfer()
    passes = 2 if collective == "all_reduce" else 1
    measured = [
        (index, measurement)
        for index, measurement in enumerate(profile.collectives if profile else ())
        if measurement.collective == collective and (measurement.num_nodes > 1) == group.crosses_nodes
    ]
    shape = _nearest([(one.num_ranks, one.num_nodes) for _, one in measured], group)
    if shape is None:
        return AlphaBeta.of(group, passes=passes)
    chosen = [(index, one) for index, one in measured if (one.num_ranks, one.num_nodes) == shape]
    points = [point for _, one in chosen for point in one.points]
    path = f"profile.collectives[{chosen[0][0]}]"
    basis = robust_basis(point.quantiles for point in points) if robust else ""
    if robust:
        points = [_slow(point) for point in points]
    curve = MeasuredCurve.of(points, path=path, basis=basis)
    if shape == (group.num_ranks, group.num_nodes):
        return curve
    return _scaled(curve, shape, group, passes, path)


def robust_basis(quantiles: Iterable[Quantiles | None]) -> str:
    """What a robust plan takes of measurements with these quantiles."""
    return "99th percentile" if all(quantiles) else "median: no 99th percentile was measured"


def _slow(point: CurvePoint) -> CurvePoint:
    if point.quantiles is None:
        return point
    return point.model_copy(update={"duration_ns": max(point.duration_ns, point.quantiles.p99)})


def _nearest(shapes: Sequence[tuple[int, int]], group: Group) -> tuple[int, int] | None:
    """The group's own shape where it is among these, else the one whose number of ranks is nearest by its ratio."""
    own = (group.num_ranks, group.num_nodes)

    def distance(shape: tuple[int, int]) -> tuple[bool, Fraction, tuple[int, int]]:
        ratio = Fraction(shape[0], group.num_ranks)
        return (shape != own, max(ratio, 1 / ratio), shape)

    return min(shapes, key=distance, default=None)


def _scaled(
    curve: MeasuredCurve, shape: tuple[int, int], group: Group, passes: int, path: str
) -> MeasuredCurve | AlphaBeta:
    """See the Note; without a known ratio (one rank was measured) alpha-beta."""
    num_ranks, num_nodes = shape
    own = AlphaBeta.of(group, passes=passes)
    if num_ranks == 1:
        return own
    is_even = num_ranks % num_nodes == 0
    measured = replace(group, num_ranks=num_ranks, num_nodes=num_nodes, is_even=is_even)
    other = AlphaBeta.of(measured, passes=passes)
    points = [
        CurvePoint(size_bytes=size, duration_ns=-(-time * own.time_ns(size) // max(1, other.time_ns(size))))
        for size, time in zip(curve.sizes_bytes, curve.times_ns, strict=True)
        if size
    ]
    where = f"scaled from {num_ranks} ranks on {num_nodes} node{'s' * (num_nodes > 1)}"
    return MeasuredCurve.of(
        points,
        path=path,
        source=NumberSource.INTERPOLATED,
        basis=f"{where}, {curve.basis}" if curve.basis else where,
    )
