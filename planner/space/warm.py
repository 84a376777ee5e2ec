"""Decisions of an earlier plan as the first plan of a search, perhaps on other machines than they were made for."""

from typing import TypeVar

from planner.program.choices import Choice
from planner.program.known import KnownSizes
from planner.program.step import KEEP, Activation
from planner.program.units import partition
from planner.schema import Decisions, MeshPlan, PlanRequest, StateTier
from planner.space.candidate import Candidate, candidates
from planner.space.fixed import NoValueLeft
from planner.space.knobs import forward_prefetch, names_of
from planner.space.layouts import Cut
from planner.space.opened import Goal, OpenCandidate, Opening
from planner.space.settings import Setting, settings
from planner.space.sharding import NoCostOnHost, Sharding

Value = TypeVar("Value")


def opened_from(request: PlanRequest, goal: Goal, earlier: Decisions) -> OpenCandidate | None:
    """The global choice nearest to earlier decisions, with those offered to its heuristic.

    None where they cannot be carried over, or would not keep the bounds of the request. Plans with anything off the
    device are not carried over: such plans are looked at only where nothing else fits.
    """
    if any(unit.optimizer_tier is not StateTier.DEVICE for unit in earlier.units):
        return None
    wanted = _mesh(request, earlier)
    found = max(
        candidates(request, on_host=False),
        key=lambda candidate: _likeness(candidate, earlier, wanted),
        default=None,
    )
    if found is None:
        return None
    training = found.training.of(request)
    known = KnownSizes(training.workload.precision)
    opening = Opening(found, Sharding(training, partition(request.model, ()), found, known), goal)
    try:
        opened = opening.open(found.with_setting(_setting(request, opening, found, earlier)))
    except (NoValueLeft, NoCostOnHost):
        return None
    opened.heuristic.offer(_assignment(opened, earlier))
    return opened if opened.heuristic.feasible else None


def _mesh(request: PlanRequest, earlier: Decisions) -> MeshPlan:
    """The same mesh; on another number of ranks as many in a shard group, where that divides them."""
    world, shard = request.cluster.num_devices, earlier.mesh.shard
    return MeshPlan(replicate=world // shard, shard=shard) if world % shard == 0 else MeshPlan(shard=world)


def _likeness(candidate: Candidate, earlier: Decisions, mesh: MeshPlan) -> tuple[bool, ...]:
    """What a candidate shares with earlier decisions, the weightiest first; the first of equals is taken."""
    training, runtime = candidate.training, earlier.runtime
    return (
        {unit.modules for unit in candidate.partition.units[1:]} == {unit.modules for unit in earlier.units[:-1]},
        candidate.mesh == mesh,
        training.micro_batch == earlier.micro_batch,
        candidate.large_mesh == next((unit.mesh for unit in earlier.units if unit.mesh), None),
        (candidate.cut is Cut.RAGGED) == bool(earlier.layouts),
        candidate.gradient_sync is runtime.gradient_sync,
        candidate.keeps_gathered != all(unit.reshard_after_backward for unit in earlier.units),
        training.reduce_dtype == earlier.reduce_dtype,
        training.optimizer_implementation == earlier.optimizer_implementation,
        bool(candidate.owners) == bool(earlier.owners),
        candidate.alias_gathers == any(unit.alias_gathers for unit in earlier.units),
    )


def _setting(request: PlanRequest, opening: Opening, candidate: Candidate, earlier: Decisions) -> Setting:
    """The setting that shares most with earlier decisions; the first of equals."""
    parts, runtime = candidate.partition, earlier.runtime
    prefetch = forward_prefetch(candidate, opening.inputs.sizes, opening.costs)
    backward = max(len(unit.backward_prefetch) for unit in earlier.units)
    planned = {unit.modules: unit.forward_prefetch for unit in earlier.units}

    def likeness(one: Setting) -> tuple[int, ...]:
        targets = prefetch.targets(one.forward_prefetch, one.gather_limit)
        lists = [names_of(parts, targets, unit) for unit in range(len(parts.units))]
        return (
            one.separate_group == runtime.separate_reduce_scatter_group,
            sum(planned.get(unit.modules) == names for unit, names in zip(parts.units, lists, strict=True)),
            one.backward_prefetch == backward,
            one.reduce_buffers == runtime.reduce_scatter_max_input_buffers,
        )

    return max(settings(request, prefetch, opening.costs), key=likeness)


def _assignment(opened: OpenCandidate, earlier: Decisions) -> tuple[int, ...]:
    """The earlier value of every decision that has it, the default of the others."""
    assignment = [0] * opened.problem.num_decisions
    units = opened.candidate.partition.units
    resharding = {unit.modules[0]: unit.reshard_after_forward for unit in earlier.units}
    for number, choice in enumerate(opened.knobs.reshard):
        _take(choice, resharding.get(units[number].modules[0]) if units[number].modules else None, assignment)
    policies = {
        plan.module: Activation(policy=plan.policy, saved_ops=plan.saved_ops) for plan in earlier.activations
    }
    calls = opened.candidate.partition.model.calls
    for call, policy in opened.knobs.activation.items():
        _take(policy, policies.get(calls[call].path, KEEP), assignment)
    return tuple(assignment)


def _take(choice: Choice[Value], wanted: object, assignment: list[int]) -> None:
    for option, when in choice:
        if type(option) is type(wanted) and option == wanted:
            for literal in when:
                assignment[literal.decision] = literal.value
            return
