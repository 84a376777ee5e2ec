"""Time of the compute regions of a call: measured (`planner.costs.durations`), or a roofline.

Roofline (Williams, Waterman and Patterson, https://doi.org/10.1145/1498765.1498785), for each region: the longer of
`flops / (peak * efficiency)` and `moved_bytes / (memory bandwidth * efficiency)`; regions run one after the other.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from planner.costs.durations import Durations, Size
from planner.costs.efficiency import COMPUTE_PERCENT, MEMORY_PERCENT, VECTOR_KINDS
from planner.costs.rates import time_ns
from planner.costs.slowdown import NO_SLOWDOWN, compute_slowdown
from planner.schema import (
    CallKind,
    DeviceSheet,
    DType,
    InconsistentRequest,
    NumberSource,
    PlanRequest,
    Region,
    RegionKind,
    SourcedNumber,
    Work,
    Workload,
)

PASSES: Mapping[str, Callable[[Region], Work]] = {
    "forward": lambda region: region.forward,
    "backward": lambda region: region.backward,
    "recompute": lambda region: region.recompute,
}


def recompute_pass(saved_ops: tuple[str, ...]) -> str:
    """Name of the pass that recomputes a call whose outputs of some operations are kept."""
    return f"recompute keeping {', '.join(saved_ops)}" if saved_ops else "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """One pass over one kind of call."""

    duration_ns: int
    num_kernels: int
    source: NumberSource
    basis: str = ""
    """By which rule, where it is neither measured as it stands nor a plain roofline."""


def pass_costs(request: PlanRequest, device: DeviceSheet, *, overlapped: bool) -> dict[tuple[str, str], PassCost]:
    """Costs by `(kind, pass)`, pass being `forward`, `backward` or `recompute`.

    With `overlapped`, durations are stretched by the profile's `compute_slowdown_under_communication`: the cost
    model has one duration for each operation, so the slowdown counts as if communication always ran beside it.

    Raises:
        InconsistentRequest: the device has no rate for an element type that a matrix region uses, or the slowdown
            leaves no speed.
    """
    slowdown = compute_slowdown(request.profile) if overlapped else NO_SLOWDOWN
    works = _all_works(request)
    durations = Durations(request=request, works=works, roofline=rooflines(request, device))
    costs = {}
    for (name, which), of_regions in works.items():
        alone = durations.of(name, which)
        costs[name, which] = PassCost(
            duration_ns=slowdown.stretched_ns(alone.ns),
            num_kernels=sum(work.num_kernels for work in of_regions),
            source=alone.source,
            basis=alone.basis,
        )
    return costs


def rooflines(request: PlanRequest, device: DeviceSheet) -> Callable[[str, str, Size], int]:
    """Nanoseconds of a pass over a kind at a size, on a device; the result raises as `region_ns` does."""
    works = _all_works(request)

    def roofline(kind: str, which: str, size: Size) -> int:
        return _roofline_ns(kind, request.model.kinds[kind], works[kind, which], size, device)

    return roofline


def _all_works(request: PlanRequest) -> dict[tuple[str, str], tuple[Work, ...]]:
    return {
        (name, which): found for name, kind in request.model.kinds.items() for which, found in _works(kind).items()
    }


def _works(kind: CallKind) -> dict[str, tuple[Work, ...]]:
    """Work of each region, by pass."""
    works = {which: tuple(map(work_of, kind.regions)) for which, work_of in PASSES.items()}
    return works | {recompute_pass(option.saved_ops): option.recompute for option in kind.selective}


def pass_sources(
    costs: Mapping[tuple[str, str], PassCost], kinds: Collection[str], saved_ops: Collection[tuple[str, ...]]
) -> tuple[SourcedNumber, ...]:
    """Every duration that is not zero, of the kinds that are called and the ways to recompute that are used."""
    used = {*PASSES, *map(recompute_pass, saved_ops)}
    return tuple(
        SourcedNumber(
            name=f"{which} of {kind}", value=cost.duration_ns, unit="ns", source=cost.source, basis=cost.basis
        )
        for kind in kinds
        for (of, which), cost in costs.items()
        if of == kind and cost.duration_ns and which in used
    )


def model_flops(request: PlanRequest) -> int:
    """FLOPs of forward and backward of one micro-batch on one rank, without recomputation."""
    batch, sequence = request.workload.micro_batch, request.workload.sequence
    of_kind = {
        name: sum(
            region.forward.flops.at(batch, sequence) + region.backward.flops.at(batch, sequence)
            for region in kind.regions
        )
        for name, kind in request.model.kinds.items()
    }
    return sum(of_kind[call.kind] for call in request.model.calls)


def param_dtype_peak(request: PlanRequest, device: DeviceSheet) -> int:
    """Dense matrix FLOP/s in the element type that parameters are computed in.

    Raises:
        InconsistentRequest: the device has no rate for it.
    """
    dtype = request.workload.precision.param_dtype or request.model.param_dtype
    return _matrix_peak(device, dtype, path="workload.precision.param_dtype")


def region_ns(region: Region, work: Work, size: Size | Workload, device: DeviceSheet, *, path: str) -> int:
    """Roofline time of one pass over one region at a size; `path` names the region in errors.

    Raises:
        InconsistentRequest: the device has no rate for the element type of a matrix region.
    """
    flops = work.flops.at(size.micro_batch, size.sequence)
    moved_bytes = work.moved_bytes.at(size.micro_batch, size.sequence)
    memory_ns = time_ns(moved_bytes, device.memory_bytes_per_s, percent=MEMORY_PERCENT)
    if flops == 0:
        return memory_ns
    peak = _peak(device, region.kind, region.dtype, path=path)
    return max(time_ns(flops, peak, percent=COMPUTE_PERCENT[region.kind]), memory_ns)


def _roofline_ns(name: str, kind: CallKind, works: tuple[Work, ...], size: Size, device: DeviceSheet) -> int:
    return sum(
        region_ns(region, work, size, device, path=f"model.kinds.{name}.regions[{index}].dtype")
        for index, (region, work) in enumerate(zip(kind.regions, works, strict=True))
    )


def _peak(device: DeviceSheet, kind: RegionKind, dtype: DType, *, path: str) -> int:
    vector = device.vector_flops_per_s or device.flops_per_s.get(DType.FLOAT32)
    if vector is not None and (
        kind in VECTOR_KINDS or (kind is RegionKind.OTHER and dtype not in device.flops_per_s)
    ):
        return vector
    return _matrix_peak(device, dtype, path=path)


def _matrix_peak(device: DeviceSheet, dtype: DType, *, path: str) -> int:
    try:
        return device.flops_per_s[dtype]
    except KeyError:
        raise InconsistentRequest(
            f"{path} is {dtype}, but device {device.name!r} has no rate for it (it has "
            f"{', '.join(sorted(device.flops_per_s))}); train in one of these, or give the device in "
            f"cluster.node_groups as a data sheet with flops_per_s.{dtype}"
        ) from None
