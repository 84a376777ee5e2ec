"""Refuses measurements that no device or link of a request's cluster can have made.

None of the efficiencies that a roofline assumes is below a half (`planner.costs.efficiency`), so what takes less
than a third of it would run at one and a half times the peak of the data sheet. The sheet of a CPU is that of one
core; any number of them may have worked. What takes a thousand times the roofline and the issue of its kernels
is no measurement of this block either.
"""

from collections.abc import Iterator

from planner.costs.compute import rooflines
from planner.costs.durations import Size
from planner.costs.topology import Topology
from planner.profiles.errors import ImplausibleProfile, Problem
from planner.profiles.plausible import PASSES, problems_of
from planner.profiles.units import rate_hint, time_hint
from planner.schema import CallMeasurement, DeviceSheet, LinkSheet, PlanRequest, Profile, block_hash

_SLOWEST = 1_000
_CORES = 100
"""Times the data sheet of one core that a CPU may reach."""
_ROUNDING_NS = 100
_OVERHEAD_NS = 10_000
"""Below this a time may be given as none."""
_NOTICEABLE_NS = 1_000_000
"""Shorter passes may be all overhead."""


def refuse_impossible(request: PlanRequest) -> None:
    """Find what contradicts itself or the data sheets.

    Raises:
        ImplausibleProfile: with path, value, probable unit and remedy of each number.
    """
    if request.profile is None:
        return
    problems = [*problems_of(request.profile), *_problems(request, request.profile)]
    if problems:
        raise ImplausibleProfile(problems)


def _problems(request: PlanRequest, profile: Profile) -> Iterator[Problem]:
    topology = Topology.of(request.cluster)
    yield from _call_problems(request, profile, topology.device)
    yield from _copy_problems(profile, topology.device)
    yield from _curve_problems(profile, topology)


def _call_problems(request: PlanRequest, profile: Profile, sheet: DeviceSheet) -> Iterator[Problem]:
    roofline = rooflines(request, sheet)
    hashes = {block_hash(request.model, kind): kind for kind in request.model.kinds}
    for index, call in enumerate(profile.calls):
        kind = hashes.get(call.block) if call.block else call.kind
        if kind not in request.model.kinds:
            continue
        for which in PASSES:
            time: int | None = getattr(call, f"{which}_ns")
            if time is not None:
                path = f"profile.calls[{index}].{which}_ns"
                size = Size(micro_batch=call.micro_batch, sequence=call.sequence)
                issue_ns = sheet.launch_ns * _num_kernels(request, kind, which)
                yield from _time_problems(path, call, time, roofline(kind, which, size), issue_ns, sheet)


def _time_problems(
    path: str, call: CallMeasurement, time: int, roofline_ns: int, issue_ns: int, sheet: DeviceSheet
) -> Iterator[Problem]:
    at = f"{call.kind!r} at {call.micro_batch} x {call.sequence}"
    fewest = 3 * _CORES if sheet.kind == "cpu" else 3
    if time * fewest < roofline_ns - (_ROUNDING_NS if time else _OVERHEAD_NS):
        yield (
            path,
            f"is {time:,} ns for {at}, but the peak of device {sheet.name!r} allows no less than about "
            f"{roofline_ns // 2:,} ns{time_hint(time, roofline_ns)}",
        )
    elif roofline_ns and time > max(_NOTICEABLE_NS, _SLOWEST * (roofline_ns + issue_ns)):
        yield (
            path,
            f"is {time:,} ns for {at}, {time // (roofline_ns + issue_ns):,} times what device {sheet.name!r} leads "
            f"to expect{time_hint(time, roofline_ns + issue_ns)}",
        )


def _num_kernels(request: PlanRequest, kind: str, which: str) -> int:
    works = (getattr(region, which) for region in request.model.kinds[kind].regions)
    return sum(work.num_kernels for work in works)


def _copy_problems(profile: Profile, sheet: DeviceSheet) -> Iterator[Problem]:
    peaks = {
        "host_to_device": sheet.host_link_bytes_per_s,
        "device_to_host": sheet.host_link_bytes_per_s,
        "device_to_device": sheet.memory_bytes_per_s,
    }
    factor = _CORES if sheet.kind == "cpu" else 2
    for index, copy in enumerate(profile.copies):
        peak = peaks.get(copy.direction)
        if peak is not None and copy.bytes_per_s > factor * peak:
            yield (
                f"profile.copies[{index}].bytes_per_s",
                f"is {copy.bytes_per_s:,} for {copy.direction}, but device {sheet.name!r} has {peak:,} bytes/s"
                f"{rate_hint(copy.bytes_per_s, peak)}",
            )
        elif peak is not None and copy.bytes_per_s * _SLOWEST < peak:
            yield (
                f"profile.copies[{index}].bytes_per_s",
                f"is {copy.bytes_per_s:,} for {copy.direction}, where device {sheet.name!r} has {peak:,} bytes/s"
                f"{rate_hint(copy.bytes_per_s, peak)}",
            )


def _curve_problems(profile: Profile, topology: Topology) -> Iterator[Problem]:
    factor = _CORES if topology.device.kind == "cpu" else 4
    for index, curve in enumerate(profile.collectives):
        link = _link(topology, curve.num_nodes)
        if link is None or curve.num_ranks == 1:
            continue
        place, point = max(enumerate(curve.points), key=lambda item: item[1].size_bytes)
        # At the least each rank receives what it does not have; several ranks of a node share its links.
        per_node = max(1, curve.num_ranks // curve.num_nodes) if curve.num_nodes > 1 else 1
        received = point.size_bytes * (curve.num_ranks - 1) // curve.num_ranks // per_node
        fastest_ns = received * 10**9 // link.bytes_per_s
        if 0 < point.duration_ns * factor < fastest_ns:
            yield (
                f"profile.collectives[{index}].points[{place}].duration_ns",
                f"is {point.duration_ns:,} ns for {curve.collective} of {point.size_bytes:,} bytes over "
                f"{curve.num_ranks} ranks, but link {link.name!r} takes {fastest_ns:,} ns"
                f"{time_hint(point.duration_ns, fastest_ns)}",
            )


def _link(topology: Topology, num_nodes: int) -> LinkSheet | None:
    return topology.intra if num_nodes == 1 else topology.rail or topology.inter
