"""Whether decisions fit their request, and whether FSDP2 would take them."""

from collections import Counter
from collections.abc import Iterator

from planner.check.calls import gradient_names
from planner.check.units import (
    Unit,
    build_units,
    enter_order,
    is_at_or_below,
    leave_order,
    module_owners,
    owner,
)
from planner.schema.base import DType
from planner.schema.model import LOSS_PATH, CallRole, ModelDescription, StateTier
from planner.schema.plan import ActivationPolicy, Decisions
from planner.schema.request import PlanRequest
from planner.schema.workload import Parallelism


def structural_problems(request: PlanRequest, decisions: Decisions) -> list[str]:
    """Everything that forbids to compute the step; empty when the decisions are sound."""
    root_problems = list(_root(decisions))
    problems = [*_sizes(request, decisions), *root_problems, *_not_modelled(request, decisions)]
    problems += _modules(request.model, decisions)
    problems += _parameters(request.model, decisions)
    problems += _activations(request.model, decisions)
    problems += _resharding(decisions)
    if not root_problems:
        problems += _prefetch(request.model, build_units(request.model, decisions))
    return problems


def _sizes(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    workload, ranks = request.workload, decisions.mesh.num_ranks
    if ranks != request.cluster.num_devices:
        yield (
            f"mesh {decisions.mesh.replicate} x {decisions.mesh.shard} has {ranks} ranks, but the cluster has "
            f"{request.cluster.num_devices} devices"
        )
    total = decisions.micro_batch * decisions.num_micro_batches * ranks
    if total != workload.global_batch:
        yield (
            f"micro-batch {decisions.micro_batch} x {decisions.num_micro_batches} micro-batches x {ranks} ranks is "
            f"{total} sequences, but the global batch is {workload.global_batch}"
        )
    if decisions.micro_batch != workload.micro_batch:
        yield f"micro-batch {decisions.micro_batch} differs from the workload's {workload.micro_batch}"
    for field in ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs"):
        planned, asked = getattr(decisions, field), getattr(workload.precision, field)
        if planned != asked:
            yield f"{field} {planned} differs from the workload's {asked}"


def _not_modelled(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    for unit in decisions.units:
        if unit.parameter_tier is not StateTier.DEVICE or unit.optimizer_tier is not StateTier.DEVICE:
            yield f"unit {unit.modules[0]!r}: offload tiers are not modelled"
        if unit.layout is not None:
            yield f"unit {unit.modules[0]!r}: layouts are not modelled"
    if decisions.layouts:
        yield "layouts are not modelled"
    for item in decisions.activations:
        if item.policy in (ActivationPolicy.SELECTIVE, ActivationPolicy.OFFLOAD):
            yield f"activations of {item.module!r}: policy {item.policy} is not modelled"
    if decisions.runtime.separate_reduce_scatter_group:
        yield "separate_reduce_scatter_group is not modelled"
    if decisions.runtime.gradient_sync != "every_micro_batch" and decisions.num_micro_batches > 1:
        yield f"gradient_sync {decisions.runtime.gradient_sync} is not modelled"
    if decisions.reduce_dtype is DType.FLOAT16:
        yield "reduce_dtype float16 is not modelled: FSDP2 divides before and after the reduction"
    if request.workload.parallelism != Parallelism():
        yield "tensor, pipeline, context and expert parallelism are not modelled"
    if request.workload.compile:
        yield "compile is not modelled"
    if request.model.states:
        yield "further training states are not modelled"


def _root(decisions: Decisions) -> Iterator[str]:
    roots = [index for index, unit in enumerate(decisions.units) if "" in unit.modules]
    if not roots:
        yield "no unit for the root module; list it last, as the module ''"
    elif len(roots) > 1:
        yield f"the root module is listed {len(roots)} times"
    elif len(decisions.units[roots[0]].modules) > 1:
        yield "the root module shares a unit with others; it must be a unit of its own"
    elif roots[0] != len(decisions.units) - 1:
        yield f"the root unit is number {roots[0] + 1} of {len(decisions.units)}; it must be last"


def _modules(model: ModelDescription, decisions: Decisions) -> Iterator[str]:
    paths = {module.path for module in model.modules}
    paths |= {call.path for call in model.calls if call.path != LOSS_PATH}
    names = [name for name, _ in model.iter_parameters()]
    listed = [module for unit in decisions.units for module in unit.modules if module]
    for module, number in Counter(listed).items():
        if number > 1:
            yield f"module {module!r} is listed {number} times; every module belongs to one unit"
        if not any(is_at_or_below(path, module) for path in paths):
            if any(name.startswith(f"{module}.") for name in names):
                yield f"module {module!r} lies inside a call: units below calls are not modelled"
            else:
                yield f"module {module!r} does not exist in the description"
        yield from _repeated(model, module)
    for index, unit in enumerate(decisions.units[:-1]):
        for later in decisions.units[index + 1 :]:
            inner = [(m, o) for m in later.modules for o in unit.modules if m != o and o and is_at_or_below(m, o)]
            for module, outer in inner:
                yield f"module {module!r} is listed after {outer!r}, which contains it; units go bottom-up"


def _repeated(model: ModelDescription, module: str) -> Iterator[str]:
    """FSDP2 gathers a module anew for each of its forwards, which a single pass cannot express."""
    number = sum(call.path == module and model.kinds[call.kind].role is not CallRole.GLUE for call in model.calls)
    if number > 1:
        yield f"module {module!r} runs {number} times in a forward: units with several passes are not modelled"


def _parameters(model: ModelDescription, decisions: Decisions) -> Iterator[str]:
    parameters = model.iter_parameters()
    owners = module_owners(decisions.units)
    storage: dict[int, set[DType]] = {}
    for name, parameter in parameters:
        unit = owner(name, owners)
        if unit is None:
            yield f"parameter {name!r} belongs to no unit"
        if parameter.tied_to is not None and owner(parameter.tied_to, owners) != unit:
            yield f"parameter {name!r} and {parameter.tied_to!r} are tied but lie in different units"
        if not parameter.shape:
            yield f"parameter {name!r} has no dimension; FSDP2 cannot shard it, give it the shape (1,)"
        if not parameter.contiguous:
            yield f"parameter {name!r} is not contiguous; FSDP2 cannot shard it"
        if parameter.requires_grad and unit is not None:
            storage.setdefault(unit, set()).add(parameter.dtype)
    for unit, dtypes in storage.items():
        if len(dtypes) > 1:
            modules = ", ".join(decisions.units[unit].modules)
            yield f"unit {modules!r} mixes trainable storage dtypes {', '.join(sorted(dtypes))}; split or cast it"
    known = {name for name, _ in parameters}
    for index, call in enumerate(model.calls):
        for name in gradient_names(model, index):
            if name not in known:
                yield f"call {index} ({call.path!r}) makes a gradient of {name!r}, which does not exist"


def _activations(model: ModelDescription, decisions: Decisions) -> Iterator[str]:
    kinds = {call.path: model.kinds[call.kind] for call in model.calls}
    for module, number in Counter(item.module for item in decisions.activations).items():
        if number > 1:
            yield f"activations of {module!r} are planned {number} times"
    for item in decisions.activations:
        if item.module not in kinds:
            yield f"activations of {item.module!r}: no call has this path"
        elif item.policy is ActivationPolicy.FULL:
            calls = [call for call in model.calls if call.path == item.module]
            if any(model.kinds[call.kind].full is None for call in calls):
                yield f"activations of {item.module!r}: its kind cannot be checkpointed (no `full` liveness)"


def _resharding(decisions: Decisions) -> Iterator[str]:
    shard = decisions.mesh.shard
    for unit in decisions.units:
        value, title = unit.reshard_after_forward, f"unit {unit.modules[0]!r}: reshard_after_forward"
        if value is None or isinstance(value, bool):
            continue
        if value == 1 or value == shard:
            yield f"{title} {value} must be written as {'true' if value == shard else 'false'}"
        elif shard % value:
            yield f"{title} {value} does not divide the shard degree {shard}"
        else:
            yield f"{title} {value}: partial resharding is not modelled"


def _prefetch(model: ModelDescription, units: tuple[Unit, ...]) -> Iterator[str]:
    entered = {unit.name: place for place, unit in enumerate(enter_order(units))}
    left = {unit.name: place for place, unit in enumerate(leave_order(units))}
    has_backward = {
        unit.name
        for unit in units
        if unit.last_call is not None and model.kinds[model.calls[unit.last_call].kind].output_requires_grad
    }
    for unit in units:
        own_entry, own_exit = (-1, len(left)) if unit.is_root else (entered.get(unit.name), left.get(unit.name))
        for direction, targets, places, own in (
            ("forward", unit.plan.forward_prefetch, entered, own_entry),
            ("backward", unit.plan.backward_prefetch, left, own_exit),
        ):
            if len(set(targets)) < len(targets):
                yield f"{unit.title} prefetches a unit twice in {direction}"
            for target in targets:
                place = places.get(target)
                if own is None:
                    yield f"{unit.title} prefetches {target!r} in {direction}, but does not run"
                elif place is None:
                    yield f"{unit.title} prefetches {target!r} in {direction}, which is not a unit that runs"
                elif direction == "forward" and place <= own:
                    yield f"{unit.title} prefetches {target!r} in forward, which does not run later"
                elif direction == "backward" and place >= own:
                    yield f"{unit.title} prefetches {target!r} in backward, which does not run earlier in forward"
                elif direction == "backward" and target not in has_backward:
                    yield f"{unit.title} prefetches {target!r} in backward, which has no backward"
