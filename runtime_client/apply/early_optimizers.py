"""Optimizers that were built before sharding: refused at their first step, which would train nothing.

`fully_shard` puts new parameters in the place of those of the model. An optimizer that holds the old ones steps
them without an error, and keeps the whole model in memory.
"""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from runtime_client.errors import OptimizerBuiltTooEarly
from runtime_client.fingerprint import iter_parameters

_replaced: Any = WeakIdKeyDictionary()
"""Parameters that are in no model any more, and their names; only while an optimizer holds them."""
_accepted: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_is_watching = False


def parameters_of(model: nn.Module) -> dict[int, tuple[str, nn.Parameter]]:
    """Names and parameters of a model by their identity, for `refuse_optimizers_of`."""
    return {id(parameter): (name, parameter) for name, parameter in iter_parameters(model)}


def refuse_optimizers_of(before: Mapping[int, tuple[str, nn.Parameter]], model: nn.Module) -> None:
    """From now on no optimizer takes its first step with a parameter that the model had and has no longer."""
    global _is_watching
    now = parameters_of(model)
    for identity, (name, parameter) in before.items():
        if identity not in now:
            _replaced[parameter] = name
    if not _is_watching:
        register_optimizer_step_pre_hook(_look)
        _is_watching = True


def _look(optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    if optimizer in _accepted:
        return
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter in _replaced:
                raise OptimizerBuiltTooEarly(
                    f"param_groups[{number}]['params'][{place}] was {_replaced[parameter]!r} before the plan was "
                    "applied and is in no model now, so that this step would train nothing. Build the optimizer "
                    "after apply_plan."
                )
    _accepted.add(optimizer)
