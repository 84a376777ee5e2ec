"""Muon on whole matrices: each rank updates those that it holds, or that the plan made it the owner of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runtime_client.optimizers.errors import CutParameter, UnknownOwner, name_of
from runtime_client.optimizers.owned import OwnedMatrix, rounds, update_round
from runtime_client.ragged.local_pieces import is_whole_somewhere, shard_group
from runtime_client.ragged.private import adjusted_muon_lr, local_of, newton_schulz


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with Newton-Schulz iterations on whole matrices: the update is that of an unsharded run.

    A matrix that lies whole on one rank, or is not sharded at all, is updated where it is. One that is cut is
    gathered by its owner, which gives the ranks their parts of the update. The momentum is a tensor of the
    parameter's own sharding. Give other parameters to an optimizer of their own.

    Args:
        params: matrices, ragged, even or whole; `named_parameters()` where there are owners.
        owners: full names of matrices and the rank of the shard group that updates each: `AppliedPlan.owners`.
            Names that are not among `params` do not matter.
        options: as of `torch.optim.Muon`.

    Raises:
        CutParameter: a matrix without an owner is spread over several ranks.
        UnknownOwner: an owner is no rank of the shard group, or owners are given and names are not.
        ValueError: a parameter is no matrix (torch's own check).
    """

    def __init__(self, params: Iterable[Any], *, owners: Mapping[str, int] | None = None, **options: Any) -> None:  # noqa: ANN401
        self.owners = dict(owners or {})
        self._owned: dict[Tensor, OwnedMatrix] = {}
        self._turns: dict[Tensor, int] = {}
        super().__init__(params, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of torch, with the checks of this class."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self.owners and "param_names" not in group:
            raise UnknownOwner(
                "Muon: owners go by name; build it from (name, parameter) pairs of named_parameters()"
            )
        turns = {name: turn for turn, name in enumerate(self.owners)}
        for place, parameter in enumerate(group["params"]):
            name = name_of(group, place)
            if name in self.owners:
                num_ranks = shard_group(parameter)[0].size()
                if not 0 <= self.owners[name] < num_ranks:
                    raise UnknownOwner(
                        f"Muon: rank {self.owners[name]} is to own {name!r}, which is sharded over {num_ranks}; "
                        "take the owners of the plan that was applied"
                    )
                self._owned[parameter] = OwnedMatrix.of(parameter, self.owners[name])
                self._turns[parameter] = turns[name]
            elif not is_whole_somewhere(parameter):
                raise CutParameter("Muon", name, parameter, "Newton-Schulz needs the whole matrix")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Update all matrices that have a gradient; where there are owners every rank must call it."""
        loss = super().step(closure)  # type: ignore[no-untyped-call]
        for group in self.param_groups:
            due = (p for p in group["params"] if p in self._owned and p.grad is not None)
            owned = [self._owned[parameter] for parameter in sorted(due, key=self._turns.__getitem__)]
            for members in _of_each_group(owned):
                for round_ in rounds(members):
                    self._update(round_, group)
        return loss

    def _update(self, members: Sequence[OwnedMatrix], group: dict[str, Any]) -> None:
        lr, momentum = float(group["lr"]), group["momentum"]

        def direction(place: int) -> Tensor:
            parameter = members[place].parameter
            assert parameter.grad is not None
            gradient, moments = local_of(parameter.grad), local_of(self.state[parameter]["momentum_buffer"])
            moments.lerp_(gradient, 1 - momentum)
            return gradient.lerp(moments, momentum) if group["nesterov"] else moments

        def update(matrix: Tensor) -> Tensor:
            return newton_schulz(matrix, group["ns_coefficients"], group["ns_steps"], group["eps"])

        for member, part in zip(members, update_round(members, direction, update), strict=True):
            local = local_of(member.parameter)
            local.mul_(1 - lr * group["weight_decay"])
            local.add_(
                part.view(local.shape), alpha=-adjusted_muon_lr(lr, group["adjust_lr_fn"], member.parameter.shape)
            )

    def _init_group(
        self,
        group: Any,  # noqa: ANN401 - as torch has it
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        muon_momentum_bufs: list[Tensor],
    ) -> Any:  # noqa: ANN401
        """What torch updates: local matrices that are whole. The state of the others is made here too."""
        has_complex = super()._init_group(group, params_with_grad, grads, muon_momentum_bufs)
        here = [
            place
            for place, parameter in enumerate(params_with_grad)
            if parameter not in self._owned and local_of(parameter).numel()
        ]
        for tensors in (params_with_grad, grads, muon_momentum_bufs):
            tensors[:] = [local_of(tensors[place]) for place in here]
        return has_complex


def _of_each_group(matrices: Sequence[OwnedMatrix]) -> list[list[OwnedMatrix]]:
    """By the ranks that they are sharded over."""
    found: dict[object, list[OwnedMatrix]] = {}
    for matrix in matrices:
        found.setdefault(shard_group(matrix.parameter)[0], []).append(matrix)
    return list(found.values())
