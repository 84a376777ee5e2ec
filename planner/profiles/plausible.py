"""Refuses measurements that cannot be true, whatever was measured.

What the numbers say of each other: quantiles surround their median; passes of one block take comparable times; of
the sizes of one block, and of one curve, no time is out of line with the others. `planner.profiles.against` holds
them against data sheets, which takes a request.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from planner.profiles.errors import ImplausibleProfile, Problem
from planner.profiles.units import time_hint
from planner.schema import CallMeasurement, CurvePoint, Profile, Quantiles

PASSES = ("forward", "backward", "recompute")
OUT_OF_LINE = 10
"""Times beyond what sizes explain by this factor are out of line."""
_PASS_RATIO = 100
"""No pass of a block takes longer than another one by this factor."""
_OVERHEAD_NS = 10_000
"""Shorter passes are overhead more than work, and say nothing of each other."""


def refuse_implausible(profile: Profile) -> None:
    """Find what contradicts itself.

    Raises:
        ImplausibleProfile: with path, value, probable unit and remedy of each number.
    """
    problems = list(problems_of(profile))
    if problems:
        raise ImplausibleProfile(problems)


def problems_of(profile: Profile) -> Iterator[Problem]:
    """Path and message of everything that cannot be true."""
    for index, call in enumerate(profile.calls):
        path = f"profile.calls[{index}]"
        for which in PASSES:
            yield from _quantile_problems(
                f"{path}.{which}_ns", getattr(call, f"{which}_ns"), getattr(call, f"{which}_quantiles")
            )
        yield from _pass_problems(path, call)
    yield from _size_problems(profile.calls)
    for index, curve in enumerate(profile.collectives):
        path = f"profile.collectives[{index}]"
        for place, point in enumerate(curve.points):
            yield from _quantile_problems(f"{path}.points[{place}].duration_ns", point.duration_ns, point.quantiles)
        yield from _curve_problems(path, curve.points)


def _quantile_problems(path: str, value: int | None, quantiles: Quantiles | None) -> Iterator[Problem]:
    if value is None or quantiles is None or quantiles.p10 <= value <= quantiles.p99:
        return
    yield (
        path,
        f"is {value}, but its tenth percentile is {quantiles.p10} and its 99th {quantiles.p99}; it lies between"
        f"{time_hint(value, max(1, quantiles.p10))}",
    )


def _pass_problems(path: str, call: CallMeasurement) -> Iterator[Problem]:
    """The pass that contradicts all others, of two the longer one."""
    times = {which: time for which in PASSES if (time := getattr(call, f"{which}_ns"))}
    longest = max(times.values(), default=0)
    for which, time in times.items():
        others = [(other, value) for other, value in times.items() if other != which]
        contradicts_all = all(_is_overlong(max(time, value), min(time, value)) for _, value in others)
        if others and contradicts_all and (len(others) > 1 or time == longest):
            other, value = others[0]
            yield (
                f"{path}.{which}_ns",
                f"is {time:,} ns, but {other} of {call.kind!r} at {_size(call)} takes {value:,} ns: none takes "
                f"{_PASS_RATIO} times another{time_hint(time, value)}",
            )


def _is_overlong(longer: int, shorter: int) -> bool:
    return longer > max(_OVERHEAD_NS, _PASS_RATIO * shorter)


def _size_problems(calls: Sequence[CallMeasurement]) -> Iterator[Problem]:
    """Of one pass of one block, a time that most others contradict."""
    families: dict[tuple[str, str], list[tuple[int, CallMeasurement, int]]] = defaultdict(list)
    for index, call in enumerate(calls):
        for which in PASSES:
            time = getattr(call, f"{which}_ns")
            if time:
                families[call.block or call.kind, which].append((index, call, time))
    for (_, which), family in families.items():
        for index, call, time in family:
            others = [(other, other_time) for place, other, other_time in family if place != index]
            against = [
                other_time * _tokens(call) // _tokens(other) or 1
                for other, other_time in others
                if not _agree(_tokens(call), time, _tokens(other), other_time)
            ]
            if len(against) * 2 > len(others) and len(others) > 1:
                expected = sorted(against)[len(against) // 2]
                yield (
                    f"profile.calls[{index}].{which}_ns",
                    f"is {time:,} ns for {call.kind!r} at {_size(call)}, where its other sizes lead to expect "
                    f"about {expected:,} ns{time_hint(time, expected)}",
                )


def _agree(tokens: int, time: int, other_tokens: int, other_time: int) -> bool:
    """Whether two times can both be true: from constant to quadratic in tokens, give or take `OUT_OF_LINE`."""
    if tokens < other_tokens:
        return _agree(other_tokens, other_time, tokens, time)
    at_least = other_time <= OUT_OF_LINE * time
    at_most = time * other_tokens**2 <= OUT_OF_LINE * other_time * tokens**2
    return at_least and at_most


def _curve_problems(path: str, points: Sequence[CurvePoint]) -> Iterator[Problem]:
    """A time that both neighbours of its size contradict, or a fall from one size to the next."""
    ordered = sorted(
        (point.size_bytes, point.duration_ns, place) for place, point in enumerate(points) if point.duration_ns
    )
    for position, (size, time, place) in enumerate(ordered):
        sides = [ordered[side] for side in (position - 1, position + 1) if 0 <= side < len(ordered)]
        wrong = [side for side in sides if not _in_line(size, time, side[0], side[1])]
        is_end_of_two = len(ordered) == 2 and position == 1
        if wrong and (len(wrong) == len(sides) > 1 or is_end_of_two or _is_outer(ordered, position)):
            other_size, other_time, _ = wrong[0]
            expected = max(1, other_time * size // max(1, other_size)) if size > other_size else other_time
            yield (
                f"{path}.points[{place}].duration_ns",
                f"is {time:,} ns for {size:,} bytes, where {other_size:,} bytes take {other_time:,} ns: times "
                f"neither fall by a factor of {OUT_OF_LINE} nor rise by that beyond the size"
                f"{time_hint(time, expected)}",
            )


def _is_outer(ordered: Sequence[tuple[int, int, int]], position: int) -> bool:
    """First or last, with a neighbour that agrees with its own other neighbour."""
    if len(ordered) < 3 or position not in (0, len(ordered) - 1):
        return False
    near, far = (ordered[1], ordered[2]) if position == 0 else (ordered[-2], ordered[-3])
    return _in_line(near[0], near[1], far[0], far[1])


def _in_line(size: int, time: int, other_size: int, other_time: int) -> bool:
    if size < other_size:
        return _in_line(other_size, other_time, size, time)
    return other_time <= OUT_OF_LINE * time and time * max(1, other_size) <= OUT_OF_LINE * other_time * max(1, size)


def _tokens(call: CallMeasurement) -> int:
    return call.micro_batch * call.sequence


def _size(call: CallMeasurement) -> str:
    return f"{call.micro_batch} x {call.sequence}"
