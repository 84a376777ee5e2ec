"""One profile from those of several hosts, or of several runs.

A pipeline of equal ranks goes at the pace of the slowest host, but one host that is far off should not decide for a
hundred: of what several profiles measured, the median counts, and of quantiles the lowest tenth and the highest
99th. Reserves of memory are the largest. What only one has is taken as it is.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

from planner.profiles.errors import NoMeasurements
from planner.profiles.plausible import refuse_implausible
from planner.schema import (
    CallMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    InconsistentRequest,
    Profile,
    Provenance,
    Quantiles,
)

P = TypeVar("P")

_LARGEST = ("context_bytes", "communicator_bytes")
_MEDIANS = ("launch_ns", "optimizer_parameters_per_s", "cpu_optimizer_parameters_per_s_per_core")
_SLOWEST = ("compute_slowdown_under_communication", "communication_slowdown_under_compute")
_SAME = ("optimizer", "cluster", "model_fingerprint")


def merge(profiles: Sequence[Profile], *, name: str | None = None) -> Profile:
    """Put profiles of one cluster together.

    Args:
        profiles: at least one.
        name: of the result; None takes the first one's.

    Raises:
        ImplausibleProfile: a number of one of them, or of one against the others, cannot be true.
        InconsistentRequest: they are of different models, clusters or optimizers.
        NoMeasurements: there is none.
    """
    if not profiles:
        raise NoMeasurements("there is nothing to merge; name at least one profile")
    for profile in profiles:
        refuse_implausible(profile)
    _require_same(profiles)
    # Side by side, so that a host that contradicts the others is found among them.
    refuse_implausible(Profile(calls=tuple(call for profile in profiles for call in profile.calls)))
    return Profile(
        name=name or profiles[0].name,
        calls=_merged(profiles, "calls", _call_key, _call),
        collectives=_merged(profiles, "collectives", _curve_key, _curve),
        copies=_merged(profiles, "copies", _copy_key, _copy),
        concurrent_collectives=all(profile.concurrent_collectives for profile in profiles),
        provenance=_provenance([profile.provenance for profile in profiles]),
        quantiles={
            field: _quantiles([profile.quantiles[field] for profile in profiles if field in profile.quantiles])
            for field in dict.fromkeys(field for profile in profiles for field in profile.quantiles)
        },
        **_scalars(profiles),
    )


def _require_same(profiles: Sequence[Profile]) -> None:
    for field in _SAME:
        values = sorted({value for profile in profiles if (value := getattr(profile, field))})
        if len(values) > 1:
            raise InconsistentRequest(
                f"profile.{field} differs: {', '.join(map(repr, values))}; merge profiles of one {field} only"
            )


def _scalars(profiles: Sequence[Profile]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for names, choose in ((_LARGEST, max), (_MEDIANS, _middle), (_SLOWEST, max), (_SAME, max)):
        for field in names:
            values = [value for profile in profiles if (value := getattr(profile, field))]
            if values:
                fields[field] = choose(values)
    return fields


def _merged(
    profiles: Sequence[Profile], field: str, key: Callable[[P], Hashable], put: Callable[[list[P]], P]
) -> tuple[P, ...]:
    groups: dict[Hashable, list[P]] = {}
    for profile in profiles:
        for one in getattr(profile, field):
            groups.setdefault(key(one), []).append(one)
    return tuple(put(group) for group in groups.values())


def _call_key(call: CallMeasurement) -> Hashable:
    return (call.kind, call.block, call.micro_batch, call.sequence)


def _call(calls: list[CallMeasurement]) -> CallMeasurement:
    update: dict[str, Any] = {"provenance": _provenance([call.provenance for call in calls])}
    for field in ("forward_ns", "backward_ns", "recompute_ns"):
        update[field] = _middle(_known(calls, field))
    for field in ("forward_quantiles", "backward_quantiles", "recompute_quantiles"):
        found = _known(calls, field)
        update[field] = _quantiles(found) if found else None
    for field in ("kept_bytes", "forward_transient_bytes", "backward_transient_bytes"):
        update[field] = max(_known(calls, field), default=None)
    return calls[0].model_copy(update=update)


def _curve_key(curve: CollectiveMeasurement) -> Hashable:
    return (curve.collective, curve.num_ranks, curve.num_nodes)


def _curve(curves: list[CollectiveMeasurement]) -> CollectiveMeasurement:
    sizes: dict[int, list[CurvePoint]] = {}
    for curve in curves:
        for point in curve.points:
            sizes.setdefault(point.size_bytes, []).append(point)
    points = tuple(
        CurvePoint(
            size_bytes=size,
            duration_ns=_middle([point.duration_ns for point in group]) or 0,
            quantiles=_quantiles(found) if (found := _known(group, "quantiles")) else None,
        )
        for size, group in sorted(sizes.items())
    )
    provenance = _provenance([curve.provenance for curve in curves])
    return curves[0].model_copy(update={"points": points, "provenance": provenance})


def _copy_key(copy: CopyMeasurement) -> Hashable:
    return (copy.direction, copy.pinned, copy.together, copy.size_bytes)


def _copy(copies: list[CopyMeasurement]) -> CopyMeasurement:
    found = _known(copies, "quantiles")
    return copies[0].model_copy(
        update={
            "bytes_per_s": _middle([copy.bytes_per_s for copy in copies]),
            "quantiles": _quantiles(found) if found else None,
            "provenance": _provenance([copy.provenance for copy in copies]),
        }
    )


def _provenance(parts: Sequence[Provenance]) -> Provenance:
    """Of all parts: what they agree on once, what differs side by side."""
    words = {
        field: ", ".join(dict.fromkeys(value for part in parts if (value := getattr(part, field))))[:200]
        for field in ("device", "driver", "torch_version", "date", "host")
    }
    return Provenance(num_samples=sum(part.num_samples for part in parts), **words)


def _quantiles(parts: Sequence[Quantiles]) -> Quantiles:
    return Quantiles(
        p10=min(part.p10 for part in parts),
        p99=max(part.p99 for part in parts),
        num_samples=sum(part.num_samples for part in parts),
    )


def _known(parts: Iterable[object], field: str) -> list[Any]:
    return [value for part in parts if (value := getattr(part, field)) is not None]


def _middle(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None
