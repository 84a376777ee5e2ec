"""Why the plan is what it is: what binds, and what the alternatives would have cost."""

from collections import Counter
from collections.abc import Iterator

from planner.costs.muon import MuonStep
from planner.costs.optimizer import state_notes
from planner.found import Found
from planner.layout.planned import even_padding
from planner.left_to_trainer import trainer_notes
from planner.nodes import Tried
from planner.older_torch import older_torch_notes
from planner.prices import shadow_values, why_not
from planner.program.inputs import local_shards, meshes_of, partition_of
from planner.schema import Alternative, Decisions, PlanRequest, Predictions, Reasons
from planner.weights import weights_ways

MAX_ALTERNATIVES = 6
_NEARLY_FULL = 0.97


def reasons_of(request: PlanRequest, found: Found, decisions: Decisions, predictions: Predictions) -> Reasons:
    """Reasons for people; everything in them follows from the search and the predictions."""
    assert found.best is not None
    assert found.assignment is not None
    gap = request.search.gap / 4
    return Reasons(
        binds=_binds(request, predictions),
        notes=(
            *_notes(decisions, predictions),
            *_layout_notes(request, decisions),
            *_owner_notes(request, decisions),
            *_optimizer_notes(request, decisions),
            *older_torch_notes(request, decisions),
            *_unused_measurements(request),
            *trainer_notes(request, decisions, predictions),
        ),
        alternatives=tuple(_alternatives(found)),
        why_not=why_not(found, gap=gap),
        shadow=shadow_values(found.best, found.assignment, gap=gap),
        weights=weights_ways(request, decisions, predictions),
    )


def _binds(request: PlanRequest, predictions: Predictions) -> str:
    budget, peak, step = predictions.budget.budget_bytes, predictions.peak, predictions.breakdown
    exposed = {
        "all-gathers": step.exposed_all_gather_ns,
        "reduce-scatters": step.exposed_reduce_scatter_ns,
        "all-reduces": step.exposed_all_reduce_ns,
        "copies from and to the host": step.exposed_host_copy_ns,
        "the CPU's launches": step.exposed_launch_ns,
    }
    stream, worst = max(exposed.items(), key=lambda item: item[1])
    parts = []
    if budget and peak.reserved_bytes > _NEARLY_FULL * budget:
        category = max(peak.by_category_bytes, key=lambda key: peak.by_category_bytes[key])
        parts.append(f"memory ({category.value.replace('_', ' ')}, at {peak.moment})")
    limit_ns = request.limits.step_time_ns
    if limit_ns is not None and step.total_ns > _NEARLY_FULL * limit_ns:
        parts.append("the longest step that will do")
    if worst > 0.02 * step.total_ns:
        parts.append(f"waiting for {stream} ({worst / step.total_ns:.1%} of the step)")
    return " and ".join(parts) or "computation: communication is hidden and memory is not full"


def _notes(decisions: Decisions, predictions: Predictions) -> list[str]:
    step = predictions.breakdown
    notes = []
    if step.recompute_ns:
        are_blocks = all(one.module.rpartition(".")[2].isdigit() for one in decisions.activations)
        what = f"{len(decisions.activations)} {'blocks' if are_blocks else 'modules'}"
        notes.append(
            f"{what} are checkpointed; recomputing them takes {step.recompute_ns / step.total_ns:.1%} of the step"
        )
    if decisions.mesh.replicate > 1:
        notes.append(
            f"parameters are sharded over {decisions.mesh.shard} ranks and replicated "
            f"{decisions.mesh.replicate} times"
        )
    for mesh in decisions.meshes[1:]:
        num = sum(unit.mesh == mesh for unit in decisions.units)
        units = "1 unit is" if num == 1 else f"{num} units are"
        notes.append(f"{units} sharded over {mesh.shard} ranks and replicated {mesh.replicate} times")
    return notes


def _layout_notes(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Which units are ragged, and what an even cut would pad."""
    if not decisions.layouts:
        return
    parameters = dict(request.model.iter_parameters())
    ragged = [unit for unit in decisions.units if unit.layouts]
    degree = {name: decisions.mesh_of(unit).shard for unit in ragged for name in unit.layouts}
    num_elements = even = planned = 0
    for layout in decisions.layouts:
        own = [parameters[entry.parameter] for entry in layout.entries]
        num_elements += sum(parameter.num_elements for parameter in own)
        even += sum(even_padding(parameter, degree[layout.name]) for parameter in own)
        planned += degree[layout.name] * layout.shard_elements
    yield (
        f"{len(ragged)} units have ragged layouts, which pad {planned / num_elements - 1:.2%} where FSDP2's even "
        f"shards would pad {even / num_elements:.2%}"
    )
    num_aliased = sum(unit.alias_gathers for unit in ragged)
    if num_aliased:
        yield f"{num_aliased} of them are gathered in place: nothing is copied out of a second buffer"


def _owner_notes(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """How evenly Muon's work is spread."""
    if not decisions.owners:
        return
    parameters = dict(request.model.iter_parameters())
    work = [0] * decisions.mesh.shard
    for entry in decisions.owners:
        parameter = parameters[entry.parameter]
        work[entry.rank] += MuonStep.of(parameter, parameter.num_elements, 1).flops
    num_rounds = max(Counter(entry.rank for entry in decisions.owners).values())
    yield (
        f"Muon's {len(decisions.owners)} matrices are updated whole by their owners, in {num_rounds} rounds; the "
        f"busiest rank has {max(work) * len(work) / sum(work) - 1:.1%} more to do than the average"
    )


def _optimizer_notes(request: PlanRequest, decisions: Decisions) -> tuple[str, ...]:
    parts = partition_of(request.model, decisions)
    return state_notes(request.workload, local_shards(parts, meshes_of(decisions, parts)))


def _unused_measurements(request: PlanRequest) -> list[str]:
    """Measurements of calls that the profile has and this plan could not use."""
    workload, calls = request.workload, request.profile.calls if request.profile else ()
    unknown = sorted({call.kind for call in calls} - request.model.kinds.keys())
    elsewhere = {
        call.kind
        for call in calls
        if (call.micro_batch, call.sequence) != (workload.micro_batch, workload.sequence)
    }
    here = {
        call.kind
        for call in calls
        if (call.micro_batch, call.sequence) == (workload.micro_batch, workload.sequence)
    }
    notes = []
    if unknown:
        notes.append(f"the profile measures calls that the model lacks, which were not used: {', '.join(unknown)}")
    missed = sorted((elsewhere - here) & request.model.kinds.keys())
    if missed:
        notes.append(
            f"the profile measures {', '.join(missed)} only at other sizes than micro-batch "
            f"{workload.micro_batch} and sequence {workload.sequence}; data sheets were used instead"
        )
    return notes


def _alternatives(found: Found) -> list[Alternative]:
    """The best plan found under other global choices, nearest first; those ruled out unseen are left out."""
    assert found.best is not None
    best: dict[str, Tried] = {}
    for node in found.nodes:
        tried = min(node.tried.values(), default=None)
        if tried is not None and node.region.label != found.best.candidate.label:
            best[node.region.label] = min(tried, best.get(node.region.label, tried))
    nearest = sorted(best.items(), key=lambda entry: (entry[1], entry[0]))
    return [
        Alternative(change=label, step_time_ns=t.step_ns, reserved_bytes=t.needed_bytes, fits=not t.exceeds)
        for label, t in nearest[:MAX_ALTERNATIVES]
    ]
