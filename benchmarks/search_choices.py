"""Requests narrowed until all of their plans can be looked at, and what a plan made of a fixed choice."""

from collections.abc import Callable
from contextlib import suppress
from math import prod
from random import Random

from benchmarks.search_checks import any_member, listed_regions
from planner.program.choices import Decision
from planner.schema import (
    Decisions,
    FixedChoice,
    InconsistentRequest,
    OptimizerGroup,
    PlanRequest,
    StateTier,
    UnitPlan,
)
from planner.space.candidate import ACTIVATION_OFFLOADS, Candidate, candidates, possible_micro_batches
from planner.space.knobs import open_knobs
from planner.space.offload import Moved, knob_of
from planner.space.regions import Region
from planner.space.settings import Setting

Value = bool | int | str


def narrowed(request: PlanRequest, rng: Random, *, max_plans: int) -> PlanRequest:
    """The request with choices of a plan drawn at random fixed, until at most so many plans are left."""
    request = _with_fixed(request, _first_choices(request, rng))
    whole = listed_regions(request)
    own = request.workload.optimizer_groups[-1]
    drawn = any_member(rng.choice(whole), rng)
    left = [
        (_global_choices(region, setting, own), region.num_choices * _num_assignments(request, region))
        for region in whole
        for setting in region.settings
    ]
    known = {choice.knob for choice in request.fixed}
    made = _global_choices(drawn, rng.choice(drawn.settings), own)
    chosen = [(knob, value) for knob, value in made.items() if knob not in known]
    rng.shuffle(chosen)
    enough = max_plans << rng.randint(0, 6)
    fixed: dict[str, Value] = {}
    while chosen and sum(num for _, num in left) > enough:
        knob, value = chosen.pop()
        fixed[knob] = value
        left = [(choices, num) for choices, num in left if choices[knob] == value]
    chosen += _units_on_host(drawn.candidate)
    chosen += [(decision.name, _value(rng.choice(decision.labels))) for decision in _decisions(request, drawn)]
    narrow = _with_fixed(request, fixed)
    while _num_plans(narrow) > max_plans:
        knob, value = chosen.pop(rng.randrange(len(chosen)))
        narrow = _with_fixed(narrow, {knob: value})
    return narrow


def _first_choices(request: PlanRequest, rng: Random) -> dict[str, Value]:
    """Choices that multiply the regions, and large units on a mesh of their own where some may be.

    Drawn where anything is left with them; nothing where there is not.
    """
    drawn: dict[str, Value] = {
        "offload": rng.choice(("none", "some", "all")),
        "optimizer_offload": rng.choice(("none", "none", "host", "nvme")),
        "root.offload": rng.random() < 0.3,
        "activation_offload": rng.choice(ACTIVATION_OFFLOADS),
        "micro_batch": rng.choice(possible_micro_batches(request)),
    }
    apart = [one for one in candidates(request, on_host=False) if one.large_mesh]
    if apart and rng.random() < 0.7:
        one = rng.choice(apart)
        assert one.large_mesh is not None
        drawn |= {"mesh.shard": one.mesh.shard, "mesh.large_units.shard": one.large_mesh.shard}
    known = {choice.knob for choice in request.fixed}
    kept = {knob: value for knob, value in drawn.items() if knob not in known and rng.random() < 0.8}
    with suppress(InconsistentRequest):  # a root without parameters is no unit that could be offloaded
        if listed_regions(_with_fixed(request, kept)):
            return kept
    return {}


def _with_fixed(request: PlanRequest, choices: dict[str, Value]) -> PlanRequest:
    fixed = tuple(FixedChoice(knob=knob, value=value) for knob, value in choices.items())
    return request.model_copy(update={"fixed": (*request.fixed, *fixed)})


def _num_plans(request: PlanRequest) -> int:
    return sum(
        _num_assignments(request, region) * len(region.settings) * region.num_choices
        for region in listed_regions(request)
    )


def _num_assignments(request: PlanRequest, region: Region) -> int:
    return prod(len(decision.labels) for decision in _decisions(request, region))


def _decisions(request: PlanRequest, region: Region) -> tuple[Decision, ...]:
    _, decisions = open_knobs(request, region.candidate, region.opening.inputs.sizes, region.opening.costs)
    return decisions


def _global_choices(region: Region, setting: Setting, own: OptimizerGroup) -> dict[str, Value]:
    candidate = region.candidate
    units = [unit.modules for unit in candidate.partition.units[1:]]
    is_split = any(module.count(".") > 1 for modules in units for module in modules)
    blocks = max((sum(module.startswith("layers.") for module in modules) for modules in units), default=1)
    return {
        "mesh.shard": candidate.mesh.shard,
        "mesh.large_units.shard": (candidate.large_mesh or candidate.mesh).shard,
        "units.embedding": ("embed",) in units,
        "units.head": any("head" in modules for modules in units),
        "split_blocks": is_split,
        "blocks_per_unit": 1 if is_split else max(1, blocks),
        "alias_gathers": candidate.alias_gathers,
        "gradient_sync": candidate.gradient_sync.value,
        "reshard_after_backward": not candidate.keeps_gathered,
        "offload": "some" if any(candidate.on_host) else "none",
        "optimizer_offload": candidate.offload.moved.value,
        "activation_offload": candidate.activation_offload,
        "micro_batch": candidate.training.micro_batch,
        "reduce_dtype": str(candidate.training.reduce_dtype),
        "optimizer_implementation": candidate.training.optimizer_implementation or own.implementation,
        "forward_prefetch": setting.forward_choice,
        "backward_prefetch": setting.backward_prefetch,
        "reduce_scatter_max_input_buffers": setting.reduce_buffers,
        "separate_reduce_scatter_group": setting.separate_group,
    }


def _units_on_host(candidate: Candidate) -> list[tuple[str, Value]]:
    """Whether each unit, or its optimizer state, is off the device, for plans that have some there."""
    parts, offload = candidate.partition, candidate.offload
    moved, most = offload.moved, offload.most
    yes, no = (True, False) if moved is Moved.UNITS else (moved.value, "none")
    return [
        (knob_of(parts, unit, moved), yes if unit in most else no)
        for unit, one in enumerate(parts.units)
        if most and one.parameters
    ]


def _value(label: str) -> Value:
    return label == "True" if label in ("True", "False") else int(label) if label.isdecimal() else label


def lost_choices(request: PlanRequest, decisions: Decisions) -> list[str]:
    """Fixed choices of units and modules that a plan does not keep."""
    return [
        f"{choice.knob} = {choice.value}"
        for choice in request.fixed
        for path, _, knob in [choice.knob.rpartition(".")]
        if (knob == "reshard_after_forward" and not _reshards(decisions, path, choice.value))
        or (path and knob in _TIERS and not _is_where(decisions, path, knob, choice.value))
        or (knob == "activation" and _policy(decisions, path) != str(choice.value).partition(":")[0])
    ]


def _is_where(decisions: Decisions, path: str, knob: str, value: Value) -> bool:
    """Whether the unit of the module, or its optimizer state alone, is where it was chosen to be."""
    first = "" if path == "root" else path
    return any(_TIERS[knob](unit) == value for unit in decisions.units if unit.modules[0] == first)


def _state_tier(unit: UnitPlan) -> str:
    return "none" if unit.optimizer_tier is unit.parameter_tier else unit.optimizer_tier.value


_TIERS: dict[str, Callable[[UnitPlan], Value]] = {
    "offload": lambda unit: unit.parameter_tier is StateTier.HOST,
    "optimizer_offload": _state_tier,
}
"""What each knob says of a unit."""


def _reshards(decisions: Decisions, path: str, value: Value) -> bool:
    """Whether the units of the module, or of its parts, do that."""
    own = [unit for unit in decisions.units if any(f"{module}.".startswith(f"{path}.") for module in unit.modules)]
    return bool(own) and all(
        (type(unit.reshard_after_forward), unit.reshard_after_forward) == (type(value), value) for unit in own
    )


def _policy(decisions: Decisions, path: str) -> str:
    """Of the module itself, or of what it is a part of."""
    planned = {entry.module: entry.policy.value for entry in decisions.activations}
    return next((planned[module] for module in planned if f"{path}.".startswith(f"{module}.")), "none")
