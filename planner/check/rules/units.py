"""Units: their modules, their order, and the parameters that they own."""

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.check.calls import gradient_names
from planner.check.parts import PlannedCall, is_at_or_below
from planner.check.units import Unit, module_owners, owner
from planner.schema.base import DType
from planner.schema.decisions import Decisions
from planner.schema.model import LOSS_PATH, OUTPUT_PATH, ModelDescription


def root_problems(decisions: Decisions) -> Iterator[str]:
    """The root is a unit of its own, the last one."""
    roots = [index for index, unit in enumerate(decisions.units) if "" in unit.modules]
    if not roots:
        yield "no unit for the root module; list it last, as the module ''"
    elif len(roots) > 1:
        yield f"the root module is listed {len(roots)} times"
    elif len(decisions.units[roots[0]].modules) > 1:
        yield "the root module shares a unit with others; it must be a unit of its own"
    elif roots[0] != len(decisions.units) - 1:
        yield f"the root unit is number {roots[0] + 1} of {len(decisions.units)}; it must be last"


def module_problems(model: ModelDescription, decisions: Decisions, calls: Sequence[PlannedCall]) -> Iterator[str]:
    """Modules exist, belong to one unit each, and are listed bottom-up."""
    paths = {module.path for module in model.modules}
    paths |= {call.path for call in calls if call.path not in (OUTPUT_PATH, LOSS_PATH)}
    names = [name for name, _ in model.iter_parameters()]
    listed = [module for unit in decisions.units for module in unit.modules if module]
    for module, number in Counter(listed).items():
        if number > 1:
            yield f"module {module!r} is listed {number} times; every module belongs to one unit"
        if any(is_at_or_below(path, module) for path in paths):
            continue
        if any(name.startswith(f"{module}.") for name in names):
            yield (
                f"module {module!r} lies inside a call whose kind has no parts for it; describe the model with "
                "such parts, or make the module of the call a unit"
            )
        else:
            yield f"module {module!r} does not exist in the description"
    for index, unit in enumerate(decisions.units[:-1]):
        for later in decisions.units[index + 1 :]:
            inner = [(m, o) for m in later.modules for o in unit.modules if m != o and o and is_at_or_below(m, o)]
            for module, outer in inner:
                yield f"module {module!r} is listed after {outer!r}, which contains it; units go bottom-up"


def pass_problems(units: Sequence[Unit]) -> Iterator[str]:
    """Every module of a group runs, and as often as the others."""
    for unit in units:
        if not unit.ends_complete:
            yield (
                f"the modules of {unit.title} do not all run equally often; FSDP2 would leave it only at the end "
                "of the forward: make them units of their own"
            )


def parameter_problems(
    model: ModelDescription, decisions: Decisions, calls: Sequence[PlannedCall]
) -> Iterator[str]:
    """Parameters have one unit each, which can shard them."""
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
    for call in calls:
        for name in gradient_names(model, call):
            if name not in known:
                yield f"call {call.origin} ({call.path!r}) makes a gradient of {name!r}, which does not exist"
