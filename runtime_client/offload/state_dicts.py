"""State of offloaded parameters as state dicts have it: tensors that are spread as the parameters are."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from runtime_client.offload.store import StateStore
from runtime_client.offload.unit_step import STEP, UnitStep
from runtime_client.ragged.private import local_of, make_dtensor
from runtime_client.ragged.tensor import RaggedTensor


def shown_state(
    units: Sequence[UnitStep], store: StateStore, known: Container[Tensor]
) -> dict[Tensor, dict[str, Tensor]]:
    """State of the parameters that have some, by parameter; on the host, and only to be read.

    Args:
        units: of the optimizer.
        store: where their state is.
        known: parameters that have some.
    """
    shown: dict[Tensor, dict[str, Tensor]] = {}
    for place, unit in enumerate(units):
        if not any(member.parameter in known for member in unit.members):
            continue
        moments = iter(store.view(place))
        for member in unit.members:
            local = {name: _as_sharded(next(moments), member.parameter) for name in member.moments}
            if member.parameter in known:
                shown[member.parameter] = {STEP: member.steps.clone(), **local}
    return shown


def state_of(unit: UnitStep, known: Mapping[Any, Mapping[str, Any]]) -> list[Tensor] | None:
    """The moments of a unit in order, of a state dict that knows some of its parameters."""
    if not any(member.parameter in known for member in unit.members):
        return None
    return [
        local_of(known[member.parameter][name])
        if member.parameter in known
        else torch.zeros(member.local.shape, dtype=member.local.dtype)
        for member in unit.members
        for name in member.moments
    ]


def _as_sharded(local: Tensor, parameter: nn.Parameter) -> Tensor:
    """A tensor that is spread as the parameter is."""
    if isinstance(parameter, RaggedTensor):
        return RaggedTensor(local, parameter.spread, tuple(parameter.shape))
    if isinstance(parameter, DTensor):
        return make_dtensor(DTensor, local, parameter.device_mesh, parameter.placements, parameter.shape)
    return local
