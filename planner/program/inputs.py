"""From documents to what `build_program` takes."""

from collections.abc import Callable, Sequence

from planner.program.choices import Choice
from planner.program.step import Knobs, PrefetchTargets, StepInputs
from planner.program.units import (
    ROOT,
    Partition,
    gradient_bytes,
    names_with_gradient,
    partition,
    shard_elements,
    unit_bytes,
)
from planner.schema import (
    ActivationPolicy,
    Decisions,
    InconsistentRequest,
    ModelDescription,
    Parameter,
    Precision,
    StateTier,
    UnsupportedField,
    Workload,
)

OptimizerBytes = Callable[[str, Parameter, int], int]
"""(full name, parameter, elements of the shard) -> bytes of optimizer state."""
LocalShards = Sequence[tuple[str, Parameter, int]]
"""(full name, parameter, elements of the shard) of the parameters that the optimizer updates."""


def local_shards(parts: Partition, shard: int) -> LocalShards:
    """Shards on rank 0 of every trainable parameter, tied ones once, in the order of registration."""
    return [
        (name, parameter, shard_elements(parameter, shard))
        for name, parameter in parts.model.iter_parameters()
        if parameter.requires_grad and parameter.tied_to is None
    ]


def step_inputs(
    parts: Partition,
    workload: Workload,
    *,
    shard: int,
    optimizer_bytes: int,
    optimizer_transient_bytes: int,
) -> StepInputs:
    """Sizes of all units and calls at the workload's micro-batch and sequence."""
    reached = names_with_gradient(parts.model)
    return StepInputs(
        partition=parts,
        sizes=tuple(
            unit_bytes(unit, shard=shard, precision=workload.precision, with_gradient=reached)
            for unit in parts.units
        ),
        gradients=tuple(tuple(sizes) for sizes in gradient_bytes(parts.model, workload.precision)),
        optimizer_bytes=optimizer_bytes,
        optimizer_transient_bytes=optimizer_transient_bytes,
        micro_batch=workload.micro_batch,
        sequence=workload.sequence,
    )


def precision_of(decisions: Decisions) -> Precision:
    """Precision policy of a plan."""
    return Precision(
        param_dtype=decisions.param_dtype,
        reduce_dtype=decisions.reduce_dtype,
        output_dtype=decisions.output_dtype,
        cast_forward_inputs=decisions.cast_forward_inputs,
    )


def partition_of(model: ModelDescription, decisions: Decisions) -> Partition:
    """Units of a plan.

    Raises:
        InconsistentRequest: the root is not last, or `partition` refuses the units.
    """
    *others, last = decisions.units
    if last.modules != ("",) or any("" in unit.modules for unit in others):
        raise InconsistentRequest('decisions.units: the root unit (modules [""]) must be listed once, last')
    return partition(model, [unit.modules for unit in others])


def knobs_of(decisions: Decisions, parts: Partition) -> Knobs:
    """All knobs fixed as a plan says."""
    index = {module: unit for unit, entry in enumerate(parts.units) for module in entry.modules}
    by_unit = {index[unit.modules[0]]: unit for unit in decisions.units}
    for path, field_ok in (
        ("decisions.layouts", not decisions.layouts),
        ("decisions.runtime.separate_reduce_scatter_group", not decisions.runtime.separate_reduce_scatter_group),
        ("decisions.units[..].layout", all(unit.layout is None for unit in decisions.units)),
        ("decisions.units[..].parameter_tier", all(u.parameter_tier is StateTier.DEVICE for u in decisions.units)),
        ("decisions.units[..].optimizer_tier", all(u.optimizer_tier is StateTier.DEVICE for u in decisions.units)),
        ("decisions.runtime.gradient_sync", decisions.runtime.gradient_sync == "every_micro_batch"),
    ):
        if not field_ok:
            raise UnsupportedField(path, "leave it at its default")

    def targets(field: str) -> PrefetchTargets:
        lists = tuple(
            tuple(_target(index, path, field) for path in getattr(by_unit[unit], field))
            for unit in range(len(parts.units))
        )
        return lists if any(lists) else ()

    return Knobs(
        shard=decisions.mesh.shard,
        replicate=decisions.mesh.replicate,
        reshard=tuple(
            Choice.fixed(_resharded(by_unit[unit].reshard_after_forward, unit, decisions.mesh.shard))
            for unit in range(len(parts.units))
        ),
        activation=_activations(decisions, parts.model),
        forward_prefetch=Choice.fixed(targets("forward_prefetch")),
        backward_prefetch=Choice.fixed(targets("backward_prefetch")),
        reduce_scatter_max_input_buffers=decisions.runtime.reduce_scatter_max_input_buffers,
        accumulates=decisions.num_micro_batches > 1,
    )


def _target(index: dict[str, int], path: str, field: str) -> int:
    if path not in index or index[path] == ROOT:
        raise InconsistentRequest(f"decisions.units[..].{field}: {path!r} is not the first module of a unit")
    return index[path]


def _resharded(value: bool | int | None, unit: int, shard: int) -> bool:
    if value is None:
        return unit != ROOT
    if isinstance(value, bool):
        return value
    if value == 1:
        return False
    if value == shard:
        return True
    raise UnsupportedField(
        "decisions.units[..].reshard_after_forward", f"partial resharding to {value} ranks; use true or false"
    )


def _activations(decisions: Decisions, model: ModelDescription) -> dict[int, Choice[ActivationPolicy]]:
    calls = {call.path: number for number, call in enumerate(model.calls)}
    chosen: dict[int, Choice[ActivationPolicy]] = {}
    for entry in decisions.activations:
        if entry.policy not in (ActivationPolicy.NONE, ActivationPolicy.FULL):
            raise UnsupportedField(f"decisions.activations[{entry.module}].policy", "use 'none' or 'full'")
        call = calls.get(entry.module)
        if call is None or model.kinds[model.calls[call].kind].full is None:
            raise InconsistentRequest(
                f"decisions.activations: {entry.module!r} cannot be checkpointed; "
                "it is not a block that the description traced under checkpointing"
            )
        chosen[call] = Choice.fixed(entry.policy)
    return chosen
