"""Optimizers for the optimizer groups of a workload."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from planner.schema import OptimizerGroup, OptimizerName, UnsupportedField
from runtime_client.apply.applied import AppliedPlan
from runtime_client.fingerprint import unwrapped_name
from runtime_client.offload.units import offloaded_units
from runtime_client.optimizers import Muon

_CLASSES: dict[OptimizerName, type[torch.optim.Optimizer]] = {
    OptimizerName.ADAMW: torch.optim.AdamW,
    OptimizerName.ADAM: torch.optim.Adam,
    OptimizerName.SGD: torch.optim.SGD,
    OptimizerName.SGD_MOMENTUM: torch.optim.SGD,
    OptimizerName.ADAFACTOR: torch.optim.Adafactor,
}


def build_optimizers(applied: AppliedPlan, groups: tuple[OptimizerGroup, ...]) -> list[torch.optim.Optimizer]:
    """One optimizer per group over its trainable parameters; the first group that matches takes a parameter.

    Parameters whose state the plan has off the device are left out: the client steps them on the CPU, in threads
    that know nothing of fake tensors.

    Raises:
        UnsupportedField: the optimizer is neither torch's nor Muon.
    """
    away = {id(p) for unit in offloaded_units(applied.model, applied.decisions).values() for p in unit}
    members: list[list[tuple[str, nn.Parameter]]] = [[] for _ in groups]
    for name, parameter in applied.model.named_parameters():
        matching = (i for i, group in enumerate(groups) if group.holds(unwrapped_name(name)))
        index = next(matching, None)
        if index is not None and parameter.requires_grad and id(parameter) not in away:
            members[index].append((unwrapped_name(name), parameter))
    built = [_build(group, members[i], i, applied) for i, group in enumerate(groups) if members[i]]
    for optimizer in built:
        applied.check_optimizer(optimizer)
    return built


def _build(
    group: OptimizerGroup, named: Sequence[tuple[str, nn.Parameter]], index: int, applied: AppliedPlan
) -> torch.optim.Optimizer:
    path = f"workload.optimizer_groups[{index}]"
    parameters = [parameter for _, parameter in named]
    if group.optimizer is OptimizerName.MUON:
        return Muon(named, owners=applied.owners) if applied.owners else torch.optim.Muon(parameters)
    if group.optimizer not in _CLASSES:
        known = sorted([*_CLASSES, OptimizerName.MUON])
        raise UnsupportedField(f"{path}.optimizer", f"a dry run knows {', '.join(known)}")
    if group.state_dtype is not None:
        raise UnsupportedField(f"{path}.state_dtype", "leave it out; torch's optimizers keep the parameter's dtype")
    options: dict[str, Any] = {"lr": 1e-4, "foreach": group.implementation == "foreach"}
    if group.optimizer is OptimizerName.SGD_MOMENTUM:
        options["momentum"] = 0.9
    if group.optimizer is not OptimizerName.ADAFACTOR:
        options["fused"] = group.implementation == "fused"
    return _CLASSES[group.optimizer](parameters, **options)
