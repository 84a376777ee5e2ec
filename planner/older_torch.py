"""Where FSDP2 of the trainer's torch does otherwise than the release that is predicted."""

from collections.abc import Iterator

from planner.catalog.torch_versions import MODELLED, differences
from planner.program.inputs import meshes_of, partition_of
from planner.program.sizes import unit_bytes
from planner.program.units import Partition, Pass, contains
from planner.schema import ActivationPolicy, Decisions, PlanRequest


def older_torch_notes(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """One sentence for each difference that touches these decisions; none for the modelled release."""
    version = request.workload.torch_version
    found = differences(version)
    start = f"predicted as torch {MODELLED}, but in torch {version}"
    parts = partition_of(request.model, decisions)
    if "reduce_input_kept_beside_the_next" in found and len(parts.units) > 1:
        yield (
            f"{start} the reduce-scatter input of one unit is still held when that of the next is made: memory may "
            f"peak higher by up to {_largest_reduce_input(parts, decisions)} bytes"
        )
    idle = _unit_without_gradients(parts) if "units_without_gradients_do_not_wait" in found else None
    if idle is not None:
        yield (
            f"{start} a reduce-scatter input is held through the backward of {idle!r}, which has no gradients: "
            f"memory may peak higher by up to {_largest_reduce_input(parts, decisions)} bytes"
        )
    around = _checkpointed_around_units(decisions) if "recomputation_casts_nothing" in found else None
    if around is not None:
        yield f"{start} units inside {around!r} do not cast inputs when it is recomputed: hand them param_dtype"


def _largest_reduce_input(parts: Partition, decisions: Decisions) -> int:
    return max(
        unit_bytes(
            unit,
            shard=mesh.shard,
            precision=decisions.precision,
            with_gradient=parts.with_gradient,
            layouts=parts.layouts.get(number, ()),
        ).reduce_input
        for number, (unit, mesh) in enumerate(zip(parts.units, meshes_of(decisions, parts), strict=True))
    )


def _unit_without_gradients(parts: Partition) -> str | None:
    """A unit with parameters that runs post-backward in the middle of backward and has nothing to reduce."""
    for run in parts.passes:
        names = [name for name, _ in parts.units[run.unit].parameters]
        if names and parts.with_gradient.isdisjoint(names) and _is_in_backward(parts, run):
            return parts.units[run.unit].name
    return None


def _is_in_backward(parts: Partition, run: Pass) -> bool:
    first, last = (parts.model.kinds[parts.model.calls[call].kind] for call in (run.first, run.last))
    return first.input_requires_grad and last.output_requires_grad


def _checkpointed_around_units(decisions: Decisions) -> str | None:
    modules = [path for unit in decisions.units for path in unit.modules if path]
    for entry in decisions.activations:
        if entry.policy is not ActivationPolicy.NONE and any(
            path != entry.module and contains(entry.module, path) for path in modules
        ):
            return entry.module
    return None
