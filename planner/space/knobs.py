"""The decisions of one global choice: open knobs for the search, and an assignment back in the contract's words."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from planner.costs import CostModel
from planner.program.choices import Choice, Decision
from planner.program.sizes import UnitBytes
from planner.program.step import KEEP, RECOMPUTE, TO_HOST, Activation, Knobs, PrefetchTargets, Resharding
from planner.program.units import ROOT, Partition
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    CallRole,
    ClientFeature,
    Decisions,
    HostRuns,
    PlanRequest,
    RuntimeKnobs,
    StateTier,
    UnitPlan,
)
from planner.schema.module_paths import modules_above
from planner.space.candidate import Candidate, num_micro_batches
from planner.space.fixed import allowed_values, allows
from planner.space.offload import Moved, knob_of
from planner.space.prefetch import ForwardPrefetch, prefetch_targets
from solver.schedule.problem import Assignment

Value = TypeVar("Value")
_RESHARD = "reshard"
_ACTIVATION = "activation"


def forward_prefetch(candidate: Candidate, sizes: Sequence[UnitBytes], costs: CostModel) -> ForwardPrefetch:
    """What the units of a global choice may prefetch in forward."""
    keeps_last = costs.host_runs is not HostRuns.KERNELS
    return ForwardPrefetch(candidate.partition, candidate.meshes, sizes, keeps_last=keeps_last)


def open_knobs(
    request: PlanRequest, candidate: Candidate, sizes: tuple[UnitBytes, ...], costs: CostModel
) -> tuple[Knobs, tuple[Decision, ...]]:
    """All knobs that the request leaves open, as choices among numbered decisions.

    Raises:
        NoValueLeft: the fixed choices contradict each other or leave some knob nothing.
    """
    decisions: list[Decision] = []

    def decide(name: str, family: str, values: "_Values[Value]") -> Choice[Value]:
        left = allowed_values(request, name, values.names) if request.fixed else values.names
        if len(left) == 1:
            return Choice.fixed(values.of[left[0]])
        labels = values.labels if len(left) == len(values.names) else tuple(map(str, left))
        decisions.append(Decision(name=name, family=family, labels=labels))
        return Choice.among(len(decisions) - 1, [values.of[value] for value in left])

    parts, meshes = candidate.partition, candidate.meshes
    with_backward = parts.with_backward
    reshard: list[Choice[Resharding]] = [Choice.fixed(False)]
    alike: dict[tuple[int, int | None], _Values[Resharding]] = {}
    for number, unit in enumerate(parts.units[1:], start=1):
        size = sizes[number].gathered if number in with_backward else None
        key = meshes[number].shard, size
        if key not in alike:
            alike[key] = _Values({value: value for value in _reshardings(request, *key, costs)})
        reshard.append(decide(f"{unit.modules[0]}.reshard_after_forward", _RESHARD, alike[key]))
    options = {
        kind: _Values(_activations(request, parts, kind)) for kind in {call.kind for call in parts.model.calls}
    }
    to_host = _Values[Activation]({ActivationPolicy.OFFLOAD.value: TO_HOST})
    offloaded, checkpointable = candidate.offloaded_blocks, set(_checkpointable(parts))
    activation = {
        call: decide(
            f"{entry.path}.activation",
            _ACTIVATION,
            to_host if entry.path in offloaded else options[entry.kind],
        )
        for call, entry in enumerate(parts.model.calls)
        if entry.path in offloaded or call in checkpointable
    }
    setting = candidate.setting
    return (
        Knobs(
            meshes=meshes,
            reshard=tuple(reshard),
            activation=activation,
            forward_prefetch=Choice.fixed(
                forward_prefetch(candidate, sizes, costs).targets(setting.forward_prefetch, setting.gather_limit)
            ),
            backward_prefetch=Choice.fixed(prefetch_targets(parts, setting.backward_prefetch, ahead=False)),
            reshard_after_backward=tuple(
                not (candidate.keeps_gathered and unit in with_backward) for unit in range(len(parts.units))
            ),
            reduce_scatter_max_input_buffers=setting.reduce_buffers,
            separate_reduce_scatter_group=setting.separate_group,
            gradient_sync=candidate.gradient_sync,
            on_host=candidate.on_host,
            optimizer_tiers=candidate.optimizer_tiers,
            aliased=candidate.aliased,
        ),
        tuple(decisions),
    )


class _Values(Generic[Value]):
    """Values that a knob may have, by what a fixed choice calls them; alike knobs share them."""

    def __init__(self, of: dict[object, Value]) -> None:
        self.of = of
        self.names = tuple(of)
        self.labels = tuple(map(str, of))


def knob_names(parts: Partition) -> set[str]:
    """Knobs of the modules of a grouping, open or fixed."""
    return {
        *(f"{unit.modules[0]}.reshard_after_forward" for unit in parts.units[1:]),
        *(knob_of(parts, unit, moved) for unit, one in enumerate(parts.units) if one.parameters for moved in Moved),
        *(f"{parts.model.calls[call].path}.activation" for call in _checkpointable(parts)),
    }


def _reshardings(
    request: PlanRequest, shard: int, gathered_bytes: int | None, costs: CostModel
) -> Iterable[Resharding]:
    """True, False, and numbers of ranks that are worth their communicator.

    These divide a node, so that backward gathers do not leave it, and free more than the communicator takes that
    each such unit has of its own: else False is better in memory and time. None (`gathered_bytes`) for units
    without a backward, which would never let go of what partial resharding keeps.
    """
    yield True
    yield False
    if gathered_bytes is None or not allows(request, ClientFeature.RESHARD_INTEGER):
        return
    devices = request.cluster.node_groups[0].devices_per_node
    for ranks in range(2, min(shard, devices + 1)):
        freed = gathered_bytes - gathered_bytes // ranks
        divides = shard % ranks == devices % ranks == 0
        if divides and freed > costs.partial_reshard_bytes(ranks):
            yield ranks


def _activations(request: PlanRequest, parts: Partition, name: str) -> dict[object, Activation]:
    """What the description traced for a kind of block: all kept, some operations kept, nothing."""
    found: dict[object, Activation] = {ActivationPolicy.NONE.value: KEEP}
    kind = parts.model.kinds[name]
    if allows(request, ClientFeature.CHECKPOINT_SELECTIVE):
        for number, option in enumerate(kind.selective):
            name = f"{ActivationPolicy.SELECTIVE.value}:{number}"
            found[name] = Activation(policy=ActivationPolicy.SELECTIVE, saved_ops=option.saved_ops)
    if allows(request, ClientFeature.CHECKPOINT_FULL):
        found[ActivationPolicy.FULL.value] = RECOMPUTE
    return found


def _checkpointable(parts: Partition) -> list[int]:
    """Calls of blocks, and of the parts of those that were cut, if they were traced under checkpointing."""
    cut, kinds = {block.path for block in parts.blocks}, parts.model.kinds
    blocks = {name for name, kind in kinds.items() if kind.full is not None and kind.role is CallRole.BLOCK}
    of_parts = {name for name, kind in kinds.items() if kind.full is not None and kind.none.saved}
    return [
        index
        for index, call in enumerate(parts.model.calls)
        if call.kind in blocks or (cut and call.kind in of_parts and not cut.isdisjoint(modules_above(call.path)))
    ]


def decisions_of(request: PlanRequest, candidate: Candidate, knobs: Knobs, assignment: Assignment) -> Decisions:
    """Write an assignment in the words of the contract."""

    def value(choice: Choice[Value]) -> Value:
        return next(option for option, when in choice if all(assignment[p.decision] == p.value for p in when))

    parts = candidate.partition
    forward, backward = value(knobs.forward_prefetch), value(knobs.backward_prefetch)
    chosen = {call: value(choice) for call, choice in knobs.activation.items()}
    precision = request.workload.precision
    order = _bottom_up(parts)
    return Decisions(
        mesh=candidate.mesh,
        units=tuple(
            UnitPlan(
                modules=parts.units[number].modules,
                mesh=None if knobs.meshes[number] == candidate.mesh else knobs.meshes[number],
                reshard_after_forward=None if number == ROOT else value(knobs.reshard[number]),
                reshard_after_backward=knobs.reshard_after_backward[number],
                forward_prefetch=names_of(parts, forward, number),
                backward_prefetch=names_of(parts, backward, number),
                parameter_tier=StateTier.HOST if knobs.is_on_host(number) else StateTier.DEVICE,
                optimizer_tier=StateTier.HOST if knobs.is_on_host(number) else knobs.optimizer_tier(number),
                layouts=tuple(layout.name for layout in parts.layouts.get(number, ())),
                alias_gathers=knobs.is_aliased(number),
                num_parameters=sum(p.num_elements for _, p in parts.units[number].parameters),
            )
            for number in order
        ),
        activations=tuple(
            ActivationPlan(
                module=parts.model.calls[call].path, policy=activation.policy, saved_ops=activation.saved_ops
            )
            for call, activation in chosen.items()
            if activation != KEEP
        ),
        param_dtype=precision.param_dtype,
        reduce_dtype=candidate.training.reduce_dtype,
        output_dtype=precision.output_dtype,
        cast_forward_inputs=precision.cast_forward_inputs,
        optimizer_implementation=candidate.training.optimizer_implementation,
        micro_batch=candidate.training.micro_batch,
        num_micro_batches=num_micro_batches(request, candidate.training.micro_batch),
        runtime=RuntimeKnobs(
            reduce_scatter_max_input_buffers=knobs.reduce_scatter_max_input_buffers,
            separate_reduce_scatter_group=knobs.separate_reduce_scatter_group,
            reduce_scatter_unused_params=bool(request.workload.conditional),
            gradient_sync=knobs.gradient_sync,
        ),
        forward_methods=request.workload.forward_methods,
        owners=candidate.owners,
        layouts=tuple(layout for number in order for layout in parts.layouts.get(number, ())),
    )


def _bottom_up(parts: Partition) -> list[int]:
    """Units in the order in which they are applied: as registered, the root last."""
    return [*range(1, len(parts.units)), ROOT]


def names_of(parts: Partition, targets: PrefetchTargets, unit: int) -> tuple[str, ...]:
    """What a unit prefetches, by the first modules of these units."""
    return tuple(parts.units[target].modules[0] for target in targets[unit]) if targets else ()
