"""Muon on whole matrices: each rank updates those that the layout gave it."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from runtime_client.ragged.local_pieces import is_whole_somewhere
from runtime_client.ragged.optimizers.errors import CutParameter, name_of


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` for matrices that lie whole on one rank each, or are not sharded at all.

    Newton-Schulz iterations run on the rank that holds the matrix, without communication; the update is that of an
    unsharded run. The momentum is a tensor of the parameter's own sharding. Give other parameters to an optimizer
    of their own.

    Raises:
        CutParameter: a matrix is spread over several ranks; names are known when built from `named_parameters()`.
        ValueError: a parameter is no matrix (torch's own check).
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of torch, with the check of this class."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for place, parameter in enumerate(group["params"]):
            if not is_whole_somewhere(parameter):
                raise CutParameter("Muon", name_of(group, place), parameter, "Newton-Schulz needs the whole matrix")

    def _init_group(
        self,
        group: Any,  # noqa: ANN401 - as torch has it
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        muon_momentum_bufs: list[Tensor],
    ) -> Any:  # noqa: ANN401
        has_complex = super()._init_group(group, params_with_grad, grads, muon_momentum_bufs)
        here = [place for place, parameter in enumerate(params_with_grad) if _local(parameter).numel()]
        for tensors in (params_with_grad, grads, muon_momentum_bufs):
            tensors[:] = [_local(tensors[place]) for place in here]
        return has_complex


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
