"""Which parameters have their optimizer state off the device."""

from torch import nn

from planner.schema import Decisions, StateTier
from runtime_client.fingerprint import iter_parameters


def offloaded_units(model: nn.Module, decisions: Decisions) -> dict[str, list[nn.Parameter]]:
    """Parameters on the device of each unit whose optimizer state is not, by the unit's first module.

    Args:
        model: sharded as the decisions say.
        decisions: units whose `parameter_tier` is not the device's are left out: all of theirs is elsewhere.
    """
    owner = {module: unit for unit in decisions.units for module in unit.modules}
    found: dict[str, list[nn.Parameter]] = {}
    seen: set[int] = set()
    for name, parameter in iter_parameters(model):
        module = name
        while module not in owner:
            module = module.rpartition(".")[0]
        unit = owner[module]
        is_offloaded = unit.optimizer_tier is not StateTier.DEVICE and unit.parameter_tier is StateTier.DEVICE
        if is_offloaded and id(parameter) not in seen:
            found.setdefault(unit.modules[0], []).append(parameter)
        seen.add(id(parameter))
    return found


def optimizer_tier(decisions: Decisions) -> StateTier:
    """Where the plan keeps optimizer state of parameters that are on the device, if not all there."""
    tiers = {unit.optimizer_tier for unit in decisions.units if unit.parameter_tier is StateTier.DEVICE}
    return next(iter(tiers - {StateTier.DEVICE}), StateTier.DEVICE)
