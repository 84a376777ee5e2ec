"""How units are sharded: after forward, on which dimension, and in which memory."""

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.check.calls import first_uses
from planner.check.parts import PlannedCall
from planner.check.units import Unit, module_owners, owner
from planner.schema.decisions import (
    Decisions,
    GradientSync,
    ShardDim,
    UnitPlan,
)
from planner.schema.model import ModelDescription, Parameter
from planner.schema.request import PlanRequest
from planner.schema.workload import OptimizerName


def mesh_problems(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Meshes of units cover all ranks, and are none that the unit has anyway."""
    ranks = decisions.mesh.num_ranks
    for unit in decisions.units:
        if unit.mesh is None:
            continue
        title = f"unit {unit.modules[0]!r}: mesh {unit.mesh.replicate} x {unit.mesh.shard}"
        if unit.modules == ("",):
            yield f"{title} of the root is the plan's own; write it as decisions.mesh"
        if unit.mesh == decisions.mesh:
            yield f"{title} is that of the plan; leave it out"
        if unit.mesh.num_ranks != ranks:
            yield f"{title} covers {unit.mesh.num_ranks} ranks, and the plan's mesh {ranks}"
    if len(decisions.meshes) > 1 and any(is_muons(request, *one) for one in request.model.iter_parameters()):
        yield "units on several meshes are not modelled with Muon, whose step communicates over one"


def is_muons(request: PlanRequest, name: str, parameter: Parameter) -> bool:
    """Whether Muon updates a parameter."""
    groups = (group for group in request.workload.optimizer_groups if group.holds(name))
    group = next(groups, None)
    return parameter.requires_grad and group is not None and group.optimizer is OptimizerName.MUON


def resharding_problems(decisions: Decisions) -> Iterator[str]:
    """A number of ranks to reshard to is a proper divisor of the unit's shard degree."""
    for unit in decisions.units:
        shard = decisions.mesh_of(unit).shard
        value, title = unit.reshard_after_forward, f"unit {unit.modules[0]!r}: reshard_after_forward"
        if value is None or isinstance(value, bool):
            continue
        if value in (1, shard):
            yield f"{title} {value} must be written as {'true' if value == shard else 'false'}"
        elif shard % value:
            yield f"{title} {value} does not divide the shard degree {shard}"


def shard_dim_problems(model: ModelDescription, decisions: Decisions) -> Iterator[str]:
    """Other dimensions than 0 exist, are whole multiples of the shard degree, and stay whole after forward."""
    for name, number in Counter(item.parameter for item in decisions.shard_dims).items():
        if number > 1:
            yield f"shard_dims lists {name!r} {number} times"
    for item in decisions.shard_dims:
        yield from _shard_dim(model, decisions, item)


def _shard_dim(model: ModelDescription, decisions: Decisions, item: ShardDim) -> Iterator[str]:
    parameter = dict(model.iter_parameters()).get(item.parameter)
    if parameter is None:
        yield f"shard_dims: no parameter {item.parameter!r}"
        return
    if parameter.tied_to is not None:
        yield f"shard_dims: {item.parameter!r} is tied; name {parameter.tied_to!r}"
    index = owner(item.parameter, module_owners(decisions.units))
    shape = parameter.shape
    shard = decisions.mesh.shard if index is None else decisions.mesh_of(decisions.units[index]).shard
    if item.dim >= len(shape):
        yield f"shard_dims: {item.parameter!r} has {len(shape)} dimensions, no dimension {item.dim}"
    elif shape[item.dim] % shard:
        yield (
            f"shard_dims: dimension {item.dim} of {item.parameter!r} has {shape[item.dim]} elements, which the "
            f"shard degree {shard} does not divide; FSDP2 pads dimension 0 only"
        )
    if index is not None and _reshards_in_part(decisions.units[index]):
        yield (
            f"shard_dims: {item.parameter!r} is in a unit with partial resharding, whose next gather fails in "
            "torch 2.13 for dimensions other than 0; reshard it in full, or shard dimension 0"
        )


def _reshards_in_part(unit: UnitPlan) -> bool:
    value = unit.reshard_after_forward
    return value is not None and not isinstance(value, bool)


def unused_problems(
    model: ModelDescription, decisions: Decisions, units: Sequence[Unit], calls: Sequence[PlannedCall]
) -> Iterator[str]:
    """Zeros for missing gradients have the element type of those that they are reduced with.

    What micro-batches without synchronisation leave is in `reduce_dtype`, zeros are in `param_dtype`, and
    `foreach_reduce` of torch 2.13 takes one type only.
    """
    runtime = decisions.runtime
    accumulates = runtime.gradient_sync is GradientSync.LAST_MICRO_BATCH and decisions.num_micro_batches > 1
    if not (accumulates and runtime.reduce_scatter_unused_params):
        return
    used = set(first_uses(model, calls))
    for unit in units:
        cast = [flat for flat in unit.flats if flat.requires_grad and flat.reduced is not flat.gathered]
        with_gradient = {unit.flat_of[p.name].name for p in unit.parameters if p.name in used}
        unused = [flat.name for flat in cast if flat.name not in with_gradient]
        if unused and len(unused) < len(cast):
            yield (
                f"{unit.title}: {unused[0]!r} gets no gradient, and reduce_scatter_unused_params would reduce its "
                f"zeros in {cast[0].gathered} with gradients that were accumulated in {cast[0].reduced}, which "
                "torch 2.13 refuses; reduce on every micro-batch, or in the type of the gradients"
            )
