"""Units of a plan as live modules, and which parameters each of them owns."""

from dataclasses import dataclass

from torch import nn

from planner.schema import Decisions, UnitPlan
from runtime_client.apply.modules import find_module, inner_module
from runtime_client.errors import RootNotLast, UnitListedTwice, UnitOrder, UnitWithoutForward
from runtime_client.fingerprint import unwrapped_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One `fully_shard` call; `parameters` are the `(full name, parameter)` that it shards."""

    where: str
    """Field of the plan, for messages."""
    plan: UnitPlan
    parameters: tuple[tuple[str, nn.Parameter], ...]


def resolve_units(model: nn.Module, decisions: Decisions) -> list[Unit]:
    """Find the modules of each unit and check that the units make a bottom-up cover of the model.

    Raises:
        UnknownModule, UnitWithoutForward, UnitListedTwice, RootNotLast, UnitOrder: see each.
    """
    for index, unit in enumerate(decisions.units):
        for place, path in enumerate(unit.modules):
            find_module(model, path, where=_field(index, place))
    _check_forward(model, decisions)
    _check_listed_once(model, decisions)
    _check_root(decisions)
    _check_bottom_up(decisions)
    owned = _owned_parameters(model, decisions)
    return [
        Unit(where=f"decisions.units[{index}]", plan=unit, parameters=tuple(owned[index]))
        for index, unit in enumerate(decisions.units)
    ]


def is_below(path: str, ancestor: str) -> bool:
    """Whether a dotted path is the ancestor or lies below it."""
    return not ancestor or path == ancestor or path.startswith(ancestor + ".")


def _field(unit: int, place: int) -> str:
    return f"decisions.units[{unit}].modules[{place}]"


def _check_forward(model: nn.Module, decisions: Decisions) -> None:
    for index, unit in enumerate(decisions.units):
        for place, path in enumerate(unit.modules):
            module = inner_module(find_module(model, path, where=_field(index, place)))
            if type(module).forward is nn.Module.forward:
                raise UnitWithoutForward(
                    f"{_field(index, place)}: {path!r} is a {type(module).__name__} without a forward, so it would "
                    "never be gathered. List its children as units instead."
                )


def _check_listed_once(model: nn.Module, decisions: Decisions) -> None:
    seen: dict[int, str] = {}
    for index, unit in enumerate(decisions.units):
        for place, path in enumerate(unit.modules):
            where = _field(index, place)
            module = inner_module(find_module(model, path, where=where))
            if id(module) in seen:
                raise UnitListedTwice(
                    f"{where}: {path!r} is the module of {seen[id(module)]} already. List each module once."
                )
            seen[id(module)] = where
            for other in unit.modules:
                if other != path and is_below(path, other):
                    raise UnitListedTwice(f"{where}: {path!r} lies inside {other!r} of the same unit. Drop it.")


def _check_root(decisions: Decisions) -> None:
    last = decisions.units[-1].modules
    if last != ("",):
        raise RootNotLast(
            f"decisions.units[{len(decisions.units) - 1}].modules is {list(last)}, but the last unit must be the "
            "root module alone, ['']."
        )


def _check_bottom_up(decisions: Decisions) -> None:
    for index, unit in enumerate(decisions.units):
        for earlier_index, earlier in enumerate(decisions.units[:index]):
            for path in unit.modules:
                if any(is_below(path, ancestor) for ancestor in earlier.modules):
                    raise UnitOrder(
                        f"decisions.units[{index}]: {path!r} lies inside decisions.units[{earlier_index}]. List "
                        "inner units before outer ones."
                    )


def _owned_parameters(model: nn.Module, decisions: Decisions) -> list[list[tuple[str, nn.Parameter]]]:
    owner: dict[nn.Module, int] = {}
    for index, unit in enumerate(decisions.units):
        for path in unit.modules:
            _claim(find_module(model, path, where="decisions.units"), index, owner)
    owned: list[list[tuple[str, nn.Parameter]]] = [[] for _ in decisions.units]
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            owned[owner[module]].append((unwrapped_name(f"{path}.{name}" if path else name), parameter))
    return owned


def _claim(module: nn.Module, index: int, owner: dict[nn.Module, int]) -> None:
    """Give a subtree to a unit, except what an earlier unit has; `fully_shard` collects the same way."""
    if module not in owner:
        owner[module] = index
        for child in module.children():
            _claim(child, index, owner)
