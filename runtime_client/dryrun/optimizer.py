"""torch optimizers for the optimizer groups of a workload."""

from typing import Any

import torch
from torch import nn

from planner.schema import OptimizerGroup, OptimizerName, UnsupportedField
from runtime_client.fingerprint import unwrapped_name

_CLASSES: dict[OptimizerName, type[torch.optim.Optimizer]] = {
    OptimizerName.ADAMW: torch.optim.AdamW,
    OptimizerName.ADAM: torch.optim.Adam,
    OptimizerName.SGD: torch.optim.SGD,
    OptimizerName.SGD_MOMENTUM: torch.optim.SGD,
    OptimizerName.ADAFACTOR: torch.optim.Adafactor,
}


def build_optimizers(model: nn.Module, groups: tuple[OptimizerGroup, ...]) -> list[torch.optim.Optimizer]:
    """One optimizer per group over its trainable parameters; the first group whose glob matches takes a parameter.

    Raises:
        UnsupportedField: the optimizer is not one that torch itself has.
    """
    members: list[list[nn.Parameter]] = [[] for _ in groups]
    for name, parameter in model.named_parameters():
        matching = (i for i, group in enumerate(groups) if group.holds(unwrapped_name(name)))
        index = next(matching, None)
        if index is not None and parameter.requires_grad:
            members[index].append(parameter)
    return [_build(group, members[i], i) for i, group in enumerate(groups) if members[i]]


def _build(group: OptimizerGroup, parameters: list[nn.Parameter], index: int) -> torch.optim.Optimizer:
    path = f"workload.optimizer_groups[{index}]"
    if group.optimizer not in _CLASSES:
        raise UnsupportedField(f"{path}.optimizer", f"a dry run knows {', '.join(sorted(_CLASSES))}")
    if group.state_dtype is not None:
        raise UnsupportedField(f"{path}.state_dtype", "leave it out; torch's optimizers keep the parameter's dtype")
    options: dict[str, Any] = {"lr": 1e-4, "foreach": group.implementation == "foreach"}
    if group.optimizer is OptimizerName.SGD_MOMENTUM:
        options["momentum"] = 0.9
    if group.optimizer is not OptimizerName.ADAFACTOR:
        options["fused"] = group.implementation == "fused"
    return _CLASSES[group.optimizer](parameters, **options)
