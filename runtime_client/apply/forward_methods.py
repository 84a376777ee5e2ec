"""Methods by which a trainer enters a model beside forward, so that they gather parameters as forward does."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from planner.schema import Decisions
from runtime_client.apply.modules import find_module
from runtime_client.apply.units import is_below
from runtime_client.errors import UnknownForwardMethod

_WHERE = "decisions.forward_methods"


def with_forward_methods(decisions: Decisions, names: Iterable[str]) -> Decisions:
    """Decisions with the methods that a launcher names, beside their own."""
    merged = tuple(dict.fromkeys((*decisions.forward_methods, *names)))
    return (
        decisions
        if merged == decisions.forward_methods
        else decisions.model_copy(update={"forward_methods": merged})
    )


def check_forward_methods(model: nn.Module, decisions: Decisions) -> None:
    """Each must be a method of a module of the model, other than forward.

    Raises:
        UnknownModule, UnknownForwardMethod: it is not.
    """
    for name in decisions.forward_methods:
        path, _, method = name.rpartition(".")
        module = find_module(model, path, where=_WHERE)
        if method == "forward" or not callable(getattr(module, method, None)):
            kind = type(module).__name__
            why = "forward gathers by itself" if method == "forward" else f"{kind} has no method {method!r}"
            raise UnknownForwardMethod(
                f"{_WHERE}: {name!r}: {why}. Name methods as `generate` or `encoder.encode`."
            )


def register_forward_methods(model: nn.Module, decisions: Decisions) -> None:
    """Wrap the methods of a sharded model.

    A module that is no unit has its own parameters in the unit around it, which its method then gathers; units
    inside it are gathered by their own forward.
    """
    units = [path for unit in decisions.units for path in unit.modules]
    for name in decisions.forward_methods:
        path, _, method = name.rpartition(".")
        module = find_module(model, path, where=_WHERE)
        around = max((unit for unit in units if is_below(path, unit)), key=len)
        owner = find_module(model, around, where=_WHERE)
        held = method if owner is module else name.replace(".", "__")
        if owner is not module:
            setattr(owner, held, getattr(module, method))
        register_fsdp_forward_method(owner, held)
        setattr(module, method, _root_first(model, getattr(owner, held)))


def _root_first(model: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the root set itself up before a unit that is entered first, which would take itself for the root."""
    state = cast(FSDPModule, model)._get_fsdp_state()

    @wraps(method)
    def entered(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        state._lazy_init()
        return method(*args, **kwargs)

    return entered
