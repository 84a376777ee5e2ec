"""Whether decisions fit their request, and whether FSDP2 would take them."""

from planner.check.parts import planned_calls
from planner.check.rules.activations import activation_problems
from planner.check.rules.atoms import atom_problems
from planner.check.rules.conditional import conditional_problems
from planner.check.rules.layouts import alias_problems, layout_problems
from planner.check.rules.owners import owner_problems
from planner.check.rules.prefetch import prefetch_problems
from planner.check.rules.request import not_modelled, size_problems
from planner.check.rules.sharding import (
    mesh_problems,
    resharding_problems,
    shard_dim_problems,
    unused_problems,
)
from planner.check.rules.units import module_problems, parameter_problems, pass_problems, root_problems
from planner.check.state import optimizer_problems, state_problems
from planner.check.units import build_units
from planner.schema.decisions import Decisions
from planner.schema.request import PlanRequest


def structural_problems(request: PlanRequest, decisions: Decisions) -> list[str]:
    """Everything that forbids to compute the step; empty when the decisions are sound."""
    model, without_root = request.model, list(root_problems(decisions))
    calls = planned_calls(model, decisions)
    problems = [*size_problems(request, decisions), *without_root, *not_modelled(request, decisions)]
    problems += module_problems(model, decisions, calls)
    problems += parameter_problems(model, decisions, calls)
    problems += activation_problems(model, decisions, calls)
    problems += mesh_problems(request, decisions)
    problems += resharding_problems(decisions)
    problems += shard_dim_problems(model, decisions)
    problems += state_problems(decisions)
    problems += owner_problems(request, decisions)
    ragged = list(layout_problems(model, decisions))
    problems += ragged
    if not (without_root or ragged):
        problems += atom_problems(request, decisions)
        units = build_units(model, decisions, calls)
        problems += pass_problems(units)
        problems += alias_problems(model, units, calls)
        problems += prefetch_problems(model, units, calls)
        problems += unused_problems(model, decisions, units, calls)
        problems += conditional_problems(request, decisions, units)
        problems += optimizer_problems(request, units)
    return problems
