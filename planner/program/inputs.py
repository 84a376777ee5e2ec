"""From documents to what `build_program` takes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from planner.program.choices import Choice
from planner.program.known import KnownSizes
from planner.program.parts import expanded
from planner.program.ragged import (
    layouts_of,
    piece_elements,
    require_sound_aliases,
    require_sound_layouts,
)
from planner.program.refusals import (
    require_sound_meshes,
    require_sound_repetition,
    require_sound_resharding,
    require_sound_tiers,
    require_sound_zeros,
)
from planner.program.sizes import shard_elements
from planner.program.step import Activation, Knobs, MicroBatch, PrefetchTargets, Resharding, StepInputs
from planner.program.units import ROOT, Partition, contains, partition, unused_parameters
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    CallKind,
    Decisions,
    InconsistentRequest,
    MeshPlan,
    ModelDescription,
    Parameter,
    StateTier,
    UnitPlan,
    UnsupportedField,
    Workload,
)

OptimizerBytes = Callable[[str, Parameter, int], int]
"""(full name, parameter, elements of the shard) -> bytes of optimizer state."""
LocalShards = Sequence[tuple[str, Parameter, int]]
"""(full name, parameter, elements of the shard) of the parameters that the optimizer updates."""


def meshes_of(decisions: Decisions, parts: Partition) -> tuple[MeshPlan, ...]:
    """Mesh of each unit."""
    own = {unit.modules[0]: unit.mesh for unit in decisions.units}
    return tuple(own[unit.modules[0]] or decisions.mesh for unit in parts.units)


def local_shards(parts: Partition, meshes: Sequence[MeshPlan], units: Collection[int] | None = None) -> LocalShards:
    """Shards of every parameter that gets a gradient, in the order of registration.

    They are those of rank 0, the fullest; of ragged buffers those of the rank that is fullest there. Optimizers
    pass over parameters without a gradient, and make no state for them.

    Args:
        parts: the units.
        meshes: of each unit.
        units: only parameters of these.
    """
    stepped = parts.with_gradient | parts.with_zeros
    degrees = {
        name: meshes[unit].shard
        for unit in (range(len(parts.units)) if units is None else units)
        for name, _ in parts.units[unit].parameters
        if name in stepped
    }
    pieces = piece_elements(parts, [mesh.shard for mesh in meshes])
    return [
        (
            name,
            parameter,
            pieces[name]
            if name in pieces
            else shard_elements(parameter, degrees[name], parts.dims.get(name, 0), name),
        )
        for name, parameter in parts.model.iter_parameters()
        if name in degrees
    ]


def units_of(parts: Partition, knobs: Knobs, *, on_host: bool) -> list[int]:
    """The units whose shards and optimizer state are on the host, or those with both on the device."""
    return [
        unit
        for unit in range(len(parts.units))
        if knobs.is_on_host(unit) is on_host and knobs.optimizer_tier(unit) is StateTier.DEVICE
    ]


def step_inputs(
    parts: Partition,
    workload: Workload,
    *,
    meshes: Sequence[MeshPlan],
    optimizer_bytes: int,
    optimizer_transient_bytes: int,
    decisions: Decisions | None = None,
    known: KnownSizes | None = None,
) -> StepInputs:
    """Sizes of all units and calls at the workload's micro-batch and sequence.

    Args:
        parts: the units.
        workload: sizes and precision.
        meshes: of each unit.
        optimizer_bytes: optimizer state on the device.
        optimizer_transient_bytes: most that the optimizer step needs on top.
        decisions: what is refused together with some sizes.
        known: what is known of this model at the workload's precision; added to.
    """
    known = known or KnownSizes(workload.precision)
    sizes = known.of_units(parts, [mesh.shard for mesh in meshes])
    if decisions:
        require_sound_zeros(decisions, parts, sizes)
    gradients, deliveries = known.of_gradients(parts)
    return StepInputs(
        partition=parts,
        sizes=sizes,
        gradients=gradients,
        deliveries=deliveries,
        optimizer_bytes=optimizer_bytes,
        optimizer_transient_bytes=optimizer_transient_bytes,
        micro_batch=workload.micro_batch,
        sequence=workload.sequence,
    )


def partition_of(model: ModelDescription, decisions: Decisions) -> Partition:
    """Units of a plan; blocks with units or checkpointed modules inside them are replaced by their parts.

    Raises:
        InconsistentRequest: the root is not last, or `partition` refuses the units.
    """
    *others, last = decisions.units
    if last.modules != ("",) or any("" in unit.modules for unit in others):
        raise InconsistentRequest('decisions.units: the root unit (modules [""]) must be listed once, last')
    modules = [unit.modules for unit in others]
    inside = expanded(model, modules, [entry.module for entry in decisions.activations])
    parts = partition(inside.model, modules, inside.blocks)
    dims = {entry.parameter: entry.dim for entry in decisions.shard_dims}
    known = {name for unit in parts.units for name, _ in unit.parameters}
    for name in dims.keys() - known:
        raise InconsistentRequest(f"decisions.shard_dims: {name!r} is no parameter of the model, or a tied copy")
    zeros = unused_parameters(parts) if decisions.runtime.reduce_scatter_unused_params else frozenset[str]()
    planned = layouts_of(decisions)
    layouts = {number: planned[unit.modules] for number, unit in enumerate(parts.units) if unit.modules in planned}
    return replace(parts, dims=dims, with_zeros=zeros, layouts=layouts)


def knobs_of(decisions: Decisions, parts: Partition) -> Knobs:
    """All knobs fixed as a plan says, for a step of one micro-batch.

    Raises:
        InconsistentRequest: a prefetch list, a partial resharding or an activation policy that cannot be.
        UnsupportedField: a knob that is not modelled.
    """
    index = {module: unit for unit, entry in enumerate(parts.units) for module in entry.modules}
    by_unit = {index[unit.modules[0]]: unit for unit in decisions.units}
    plans = [by_unit[unit] for unit in range(len(parts.units))]
    require_sound_tiers(plans)
    require_sound_meshes(decisions)
    meshes = meshes_of(decisions, parts)
    require_sound_layouts(parts, [mesh.shard for mesh in meshes])
    require_sound_aliases(parts, [mesh.shard for mesh in meshes], [plan.alias_gathers for plan in plans])
    resharding = [
        _resharding(plan.reshard_after_forward, unit, meshes[unit].shard) for unit, plan in enumerate(plans)
    ]
    require_sound_resharding(parts, resharding)
    require_sound_repetition(decisions, parts)
    activation, blocks = _activations(decisions, parts)
    with_backward = parts.with_backward
    return Knobs(
        meshes=meshes,
        reshard=tuple(map(Choice[Resharding].fixed, resharding)),
        reshard_after_backward=tuple(
            plan.reshard_after_backward or (resharding[unit] is not False and unit not in with_backward)
            for unit, plan in enumerate(plans)
        ),
        on_host=tuple(plan.parameter_tier is StateTier.HOST for plan in plans),
        optimizer_tiers=tuple(plan.optimizer_tier for plan in plans),
        aliased=tuple(plan.alias_gathers for plan in plans),
        activation=activation,
        checkpointed_blocks=blocks,
        forward_prefetch=Choice.fixed(_targets(plans, index, "forward_prefetch")),
        backward_prefetch=Choice.fixed(_targets(plans, index, "backward_prefetch")),
        reduce_scatter_max_input_buffers=decisions.runtime.reduce_scatter_max_input_buffers,
        separate_reduce_scatter_group=decisions.runtime.separate_reduce_scatter_group,
        gradient_sync=decisions.runtime.gradient_sync,
    )


def micro_batches(knobs: Knobs, num: int) -> list[tuple[Knobs, int]]:
    """The micro-batches of a step that differ, in order, each with how many there are.

    Where every knob treats them alike, one that finds sharded gradients stands for all: the first has nothing to
    add to, and takes that much less.
    """
    if num == 1:
        return [(knobs, 1)]
    later = MicroBatch(is_first=False, is_last=True)
    if knobs.treats_alike:
        return [(replace(knobs, micro_batch=later), num)]
    return each_micro_batch(knobs, num)


def each_micro_batch(knobs: Knobs, num: int) -> list[tuple[Knobs, int]]:
    """First, middle ones and last, as far as there are."""
    if num == 1:
        return [(knobs, 1)]
    places = [
        (MicroBatch(is_first=True, is_last=False), 1),
        (MicroBatch(is_first=False, is_last=False), num - 2),
        (MicroBatch(is_first=False, is_last=True), 1),
    ]
    return [(replace(knobs, micro_batch=place), count) for place, count in places if count]


def accumulating_units(places: Sequence[tuple[Knobs, int]]) -> frozenset[int]:
    """Units of which some of these micro-batches adds to sharded gradients of earlier ones."""
    return frozenset(
        unit for place, _ in places for unit in range(len(place.reshard)) if place.finds_sharded_gradients(unit)
    )


def _targets(plans: Sequence[UnitPlan], index: dict[str, int], field: str) -> PrefetchTargets:
    lists = tuple(tuple(_target(index, path, field) for path in getattr(plan, field)) for plan in plans)
    for plan, targets in zip(plans, lists, strict=True):
        if index[plan.modules[0]] in targets:
            raise InconsistentRequest(
                f"decisions.units[..].{field}: unit {plan.modules[0]!r} prefetches itself; drop it from its list"
            )
    return lists if any(lists) else ()


def _target(index: dict[str, int], path: str, field: str) -> int:
    if path not in index or index[path] == ROOT:
        raise InconsistentRequest(f"decisions.units[..].{field}: {path!r} is not the first module of a unit")
    return index[path]


def _resharding(value: bool | int | None, unit: int, shard: int) -> Resharding:
    if value is None:
        return unit != ROOT
    if isinstance(value, bool):
        return value
    if value == 1:
        return False
    if value == shard:
        return True
    if value > shard or shard % value:
        raise InconsistentRequest(
            f"decisions.units[..].reshard_after_forward: {value} does not divide the shard degree {shard}"
        )
    return value


def _activations(decisions: Decisions, parts: Partition) -> tuple[dict[int, Choice[Activation]], frozenset[str]]:
    calls: dict[str, list[int]] = {}
    for index, one in enumerate(parts.model.calls):
        calls.setdefault(one.path, []).append(index)
    blocks = {block.path for block in parts.blocks}
    chosen: dict[int, Choice[Activation]] = {}
    checkpointed: set[str] = set()
    for entry in decisions.activations:
        if entry.module in blocks and entry.policy is not ActivationPolicy.NONE:
            _require_full(entry)
            _require_outermost(entry.module, checkpointed)
            checkpointed.add(entry.module)
            continue
        kinds = [parts.model.kinds[parts.model.calls[call].kind] for call in calls.get(entry.module, ())]
        if kinds and entry.policy is ActivationPolicy.OFFLOAD:
            _require_not_recomputed(
                entry.module, checkpointed | {one.module for one in decisions.activations} & blocks
            )
        elif not kinds or any(kind.full is None for kind in kinds):
            raise InconsistentRequest(
                f"decisions.activations: {entry.module!r} cannot be checkpointed; "
                "it is not a block that the description traced under checkpointing"
            )
        for call, kind in zip(calls[entry.module], kinds, strict=True):
            chosen[call] = Choice.fixed(_activation(entry, kind))
    return chosen, frozenset(checkpointed)


def _require_full(entry: ActivationPlan) -> None:
    if entry.policy is not ActivationPolicy.FULL:
        raise UnsupportedField(
            f"decisions.activations[{entry.module}].policy",
            "a block with units inside it is checkpointed in full or not at all",
        )


def _require_not_recomputed(module: str, checkpointed: Collection[str]) -> None:
    for block in checkpointed:
        if contains(block, module):
            raise InconsistentRequest(
                f"decisions.activations: {module!r} is offloaded inside the checkpointed {block!r}, which keeps "
                "nothing of it; drop one of the two"
            )


def _require_outermost(module: str, others: Collection[str]) -> None:
    for other in others:
        if contains(other, module) or contains(module, other):
            raise InconsistentRequest(
                f"decisions.activations: {module!r} and {other!r} lie inside each other, and both have units or "
                "checkpointed modules inside them; checkpoint one of the two"
            )


def _activation(entry: ActivationPlan, kind: CallKind) -> Activation:
    if entry.policy is not ActivationPolicy.SELECTIVE:
        return Activation(policy=entry.policy)
    saved = tuple(sorted(entry.saved_ops))
    known = [option.saved_ops for option in kind.selective]
    if saved not in known:
        raise InconsistentRequest(
            f"decisions.activations[{entry.module}].saved_ops: {list(saved)} was not traced; the description has "
            f"{[list(ops) for ops in known]}"
        )
    return Activation(policy=entry.policy, saved_ops=saved)
