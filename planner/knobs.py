"""The decisions of one global choice: open knobs for the search, and an assignment back in the contract's words."""

from typing import TypeVar

from planner.candidates import Candidate, allowed_values, allows
from planner.program.choices import Choice, Decision
from planner.program.step import RECOMPUTE, Activation, Knobs, MicroBatch, PrefetchTargets, Resharding
from planner.program.units import ROOT, Partition, Pass
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Call,
    CallRole,
    ClientFeature,
    Decisions,
    PlanRequest,
    UnitPlan,
)
from solver.schedule.problem import Assignment

MAX_DEPTH = 2
"""Deepest explicit prefetch that is searched."""
Value = TypeVar("Value")


def num_micro_batches(request: PlanRequest) -> int:
    """Micro-batches per rank and step."""
    workload = request.workload
    return workload.global_batch // (workload.micro_batch * request.cluster.num_devices)


def open_knobs(request: PlanRequest, candidate: Candidate) -> tuple[Knobs, tuple[Decision, ...]]:
    """All knobs that the request leaves open, as choices among numbered decisions."""
    decisions: list[Decision] = []

    def decide(name: str, family: str, values: tuple[object, ...]) -> Choice[object]:
        left = allowed_values(request, name, values)
        if len(left) == 1:
            return Choice.fixed(left[0])
        decisions.append(Decision(name=name, family=family, labels=tuple(map(str, left))))
        return Choice.among(len(decisions) - 1, left)

    parts = candidate.partition
    reshard: list[Choice[Resharding]] = [Choice.fixed(False)]
    reshard.extend(
        decide(f"{unit.modules[0]}.reshard_after_forward", "reshard", (True, False))  # type: ignore[misc]
        for unit in parts.units[1:]
    )
    activation: dict[int, Choice[Activation]] = {}
    policies = (ActivationPolicy.NONE, ActivationPolicy.FULL)
    for call, entry in enumerate(parts.model.calls):
        if _can_checkpoint(parts, entry):
            policy = decide(
                f"{entry.path}.activation",
                "activation",
                policies if allows(request, ClientFeature.CHECKPOINT_FULL) else policies[:1],
            )
            activation[call] = Choice(
                tuple((Activation(policy=ActivationPolicy(str(value))), when) for value, when in policy)
            )
    depths = (0, *range(1, MAX_DEPTH + 1)) if _prefetches(request, candidate) else (0,)
    forward = decide("forward_prefetch", "forward_prefetch", depths)
    backward = decide("backward_prefetch", "backward_prefetch", tuple(d for d in depths if d != 1))
    return (
        Knobs(
            shard=candidate.mesh.shard,
            replicate=candidate.mesh.replicate,
            reshard=tuple(reshard),
            activation=activation,
            forward_prefetch=_targets(parts, forward, ahead=True),
            backward_prefetch=_targets(parts, backward, ahead=False),
            micro_batch=MicroBatch(is_first=num_micro_batches(request) == 1),
        ),
        tuple(decisions),
    )


def knob_names(candidate: Candidate) -> set[str]:
    """Knobs of the modules of a global choice, open or fixed."""
    parts = candidate.partition
    return {
        *(f"{unit.modules[0]}.reshard_after_forward" for unit in parts.units[1:]),
        *(f"{entry.path}.activation" for entry in parts.model.calls if _can_checkpoint(parts, entry)),
    }


def _can_checkpoint(parts: Partition, call: Call) -> bool:
    kind = parts.model.kinds[call.kind]
    return kind.role is CallRole.BLOCK and kind.full is not None


def _prefetches(request: PlanRequest, candidate: Candidate) -> bool:
    return (
        candidate.mesh.shard > 1
        and allows(request, ClientFeature.PREFETCH)
        and len(candidate.partition.passes) > MAX_DEPTH
    )


def _targets(parts: Partition, depth: Choice[object], *, ahead: bool) -> Choice[PrefetchTargets]:
    return Choice(tuple((prefetch_targets(parts, int(str(value)), ahead=ahead), when) for value, when in depth))


def prefetch_targets(parts: Partition, depth: int, *, ahead: bool) -> PrefetchTargets:
    """Per unit, the next `depth` units in the order of the pass; nothing at depth 0 (FSDP2's default).

    Units whose output requires no grad have no backward, so nothing gathers them there. The root has no list in
    backward: where it returns more than one tensor its hook runs again in the middle, and a list would gather units
    that are done.
    """
    if not depth:
        return ()
    order = [run.unit for run in parts.passes if ahead or _has_backward(parts, run)]
    if not ahead:
        order.reverse()
    lists: list[tuple[int, ...]] = [()] * len(parts.units)
    lists[ROOT] = tuple(order[:depth]) if ahead else ()
    for position, unit in enumerate(order):
        lists[unit] = tuple(order[position + 1 : position + 1 + depth])
    return tuple(lists)


def _has_backward(parts: Partition, run: Pass) -> bool:
    return parts.model.kinds[parts.model.calls[run.last].kind].output_requires_grad


def decisions_of(
    request: PlanRequest, candidate: Candidate, decisions: tuple[Decision, ...], assignment: Assignment
) -> Decisions:
    """Write an assignment in the words of the contract."""
    knobs, _ = open_knobs(request, candidate)
    chosen = dict(enumerate(assignment))

    def value(choice: Choice[Value]) -> Value:
        return next(option for option, when in choice if all(chosen[part.decision] == part.value for part in when))

    parts = candidate.partition
    forward = value(knobs.forward_prefetch)
    backward = value(knobs.backward_prefetch)
    units = []
    for number in [*range(1, len(parts.units)), ROOT]:
        unit = parts.units[number]
        units.append(
            UnitPlan(
                modules=unit.modules,
                reshard_after_forward=None if number == ROOT else value(knobs.reshard[number]),
                forward_prefetch=_names(parts, forward, number),
                backward_prefetch=_names(parts, backward, number),
                num_parameters=sum(p.num_elements for _, p in unit.parameters),
            )
        )
    precision = request.workload.precision
    return Decisions(
        mesh=candidate.mesh,
        units=tuple(units),
        activations=tuple(
            ActivationPlan(module=parts.model.calls[call].path, policy=ActivationPolicy.FULL)
            for call, choice in knobs.activation.items()
            if value(choice) == RECOMPUTE
        ),
        param_dtype=precision.param_dtype,
        reduce_dtype=precision.reduce_dtype,
        output_dtype=precision.output_dtype,
        cast_forward_inputs=precision.cast_forward_inputs,
        micro_batch=request.workload.micro_batch,
        num_micro_batches=num_micro_batches(request),
    )


def _names(parts: Partition, targets: PrefetchTargets, unit: int) -> tuple[str, ...]:
    return tuple(parts.units[target].modules[0] for target in targets[unit]) if targets else ()
