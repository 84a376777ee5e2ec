"""From samples of all ranks to the parts of a `Profile`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.schema import (
    CallMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    ModelDescription,
    Provenance,
    Quantiles,
    TracePoint,
)
from runtime_client.profile.calls import CallSamples, subjects
from runtime_client.profile.collectives import CurveSamples
from runtime_client.profile.copies import CopySamples
from runtime_client.profile.options import ProfileOptions
from runtime_client.profile.samples import middle, spread

if TYPE_CHECKING:
    from runtime_client.profile.run import Found

_NS_PER_S = 10**9
_PASSES = ("forward", "backward", "recompute")


def calls_of(
    model: ModelDescription, of_ranks: Sequence[dict[str, dict[TracePoint, CallSamples]]], provenance: Provenance
) -> tuple[CallMeasurement, ...]:
    """Calls by kind and point; samples of all ranks count alike."""
    return tuple(
        _call(kind, subject.block, point, [rank[subject.block][point] for rank in of_ranks], provenance)
        for subject in subjects(model)
        for kind in subject.kinds
        for point in of_ranks[0][subject.block]
        if all(point in rank[subject.block] for rank in of_ranks)
    )


def _call(
    kind: str, block: str, point: TracePoint, of_ranks: list[CallSamples], provenance: Provenance
) -> CallMeasurement:
    fields: dict[str, Any] = {}
    for name in _PASSES:
        samples = [sample for rank in of_ranks for sample in getattr(rank, name)]
        if samples:
            fields |= {f"{name}_ns": middle(samples), f"{name}_quantiles": spread(samples)}
    num_bytes = of_ranks[0].num_bytes
    if num_bytes is not None:
        fields |= {
            "kept_bytes": num_bytes.kept,
            "forward_transient_bytes": num_bytes.forward_transient,
            "backward_transient_bytes": num_bytes.backward_transient,
        }
    num_samples = sum(len(rank.forward) for rank in of_ranks)
    return CallMeasurement(
        kind=kind,
        block=block,
        micro_batch=point.micro_batch,
        sequence=point.sequence,
        provenance=provenance.model_copy(update={"num_samples": num_samples}),
        **fields,
    )


def collective_of(curve: CurveSamples, provenance: Provenance) -> CollectiveMeasurement:
    """A curve; its samples are of the slowest rank already."""
    return CollectiveMeasurement(
        collective=curve.collective,
        num_ranks=curve.num_ranks,
        num_nodes=curve.num_nodes,
        points=tuple(
            CurvePoint(size_bytes=size, duration_ns=middle(samples), quantiles=spread(samples))
            for size, samples in sorted(curve.times_ns.items())
        ),
        provenance=provenance.model_copy(update={"num_samples": sum(map(len, curve.times_ns.values()))}),
    )


def copy_of(of_ranks: Sequence[CopySamples], provenance: Provenance) -> CopyMeasurement:
    """A kind of copy, from all ranks that measured it."""
    first = of_ranks[0]
    samples = [sample for rank in of_ranks for sample in rank.times_ns]
    return CopyMeasurement.model_validate(
        {
            "direction": first.direction,
            "bytes_per_s": max(1, _rate(first.size_bytes, samples)),
            "provenance": provenance.model_copy(update={"num_samples": len(samples)}),
            "pinned": first.pinned,
            "together": first.together,
            "size_bytes": first.size_bytes,
            "quantiles": spread(samples),
        }
    )


def scalars_of(options: ProfileOptions, of_ranks: Sequence["Found"]) -> dict[str, Any]:
    """Fields of a profile that are single numbers, with their quantiles."""
    launches = [sample for rank in of_ranks for sample in rank.launches_ns]
    fields: dict[str, Any] = {"launch_ns": middle(launches)}
    quantiles = {"launch_ns": spread(launches)}
    for place, name, cores in (
        ("device", "optimizer_parameters_per_s", 1),
        ("host", "cpu_optimizer_parameters_per_s_per_core", of_ranks[0].cores),
    ):
        steps = [rank.steps[place] for rank in of_ranks if place in rank.steps]
        if steps:
            elements = steps[0][0]
            samples = [sample for _, times in steps for sample in times]
            fields[name] = max(1, _rate(elements, samples) // cores)
            quantiles[name] = _rates(elements, cores, spread(samples))
            fields["optimizer"] = f"{options.optimizer}/{options.implementation}"
    for name in ("context_bytes", "communicator_bytes"):
        known = [size for rank in of_ranks if (size := getattr(rank, name)) is not None]
        if known:
            fields[name] = max(known)
    overlap = of_ranks[0].overlap
    if overlap is not None:
        fields |= {
            "concurrent_collectives": overlap.concurrent_collectives,
            "compute_slowdown_under_communication": overlap.compute_slowdown,
            "communication_slowdown_under_compute": overlap.communication_slowdown,
        }
    return fields | {"quantiles": quantiles}


def _rate(work: int, samples: Sequence[int]) -> int:
    return work * _NS_PER_S // max(1, middle(samples))


def _rates(work: int, cores: int, times: Quantiles) -> Quantiles:
    """Quantiles of rates from those of times: the highest rates belong to the shortest times."""
    slow, fast = (work * _NS_PER_S // max(1, time) // cores for time in (times.p99, times.p10))
    return Quantiles(p10=slow, p99=fast, num_samples=times.num_samples)
