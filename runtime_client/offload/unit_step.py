"""The optimizer step of one unit on the CPU: parameters and gradients in a staging buffer, state from a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from runtime_client.offload.staging import size_of, views
from runtime_client.ragged.private import local_of

STEP = "step"
_MOMENTS = ("exp_avg", "exp_avg_sq")
IDENTITIES = ("params", "param_names")
"""What a group has beside hyperparameters."""

Groups = Sequence[Mapping[str, Any]]
"""Hyperparameters of each group of the optimizer, as they are when a step begins."""


def moment_names(group: Mapping[str, Any]) -> tuple[str, ...]:
    """What Adam keeps for each element of a parameter of a group."""
    return (*_MOMENTS, "max_exp_avg_sq") if group["amsgrad"] else _MOMENTS


def hyperparameters(groups: Groups) -> list[dict[str, Any]]:
    """A copy of those of each group, on the host."""
    return [{name: _copied(value) for name, value in group.items() if name not in IDENTITIES} for group in groups]


def _copied(value: Any) -> Any:  # noqa: ANN401 - any hyperparameter
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A parameter of a unit."""

    parameter: nn.Parameter
    """As the trainer knows it."""
    group: int
    """Its place in `param_groups`."""
    moments: tuple[str, ...]
    steps: Tensor
    """How often it was updated, on the host; the optimizer counts here."""
    proxy: nn.Parameter
    """What the step on the CPU takes for the parameter."""

    @property
    def local(self) -> Tensor:
        """The shard on the device."""
        return local_of(self.parameter)

    @property
    def gradient(self) -> Tensor:
        """Its gradient there; the parameter has one."""
        assert self.parameter.grad is not None
        return local_of(self.parameter.grad)


@dataclass(slots=True, kw_only=True, eq=False)
class UnitStep:
    """The parameters of a unit, and an optimizer over what stands for them on the host."""

    name: str
    members: list[Member]
    optimizer: Adam
    groups: list[int] = field(default_factory=list)
    """Of the optimizer's own groups, the place of each in `param_groups`."""

    @classmethod
    def of(
        cls, name: str, parameters: Sequence[tuple[nn.Parameter, int]], kind: type[Adam], groups: Groups
    ) -> "UnitStep":
        """A unit with `(parameter, place of its group)`."""
        settings = hyperparameters(groups)
        members = [
            Member(
                parameter=parameter,
                group=group,
                moments=moment_names(settings[group]),
                steps=torch.zeros((), dtype=torch.float32),
                proxy=nn.Parameter(torch.empty(0, dtype=parameter.dtype)),
            )
            for parameter, group in parameters
        ]
        used = sorted({member.group for member in members})
        optimizer = kind(
            [
                {**settings[group], "params": [member.proxy for member in members if member.group == group]}
                for group in used
            ]
        )
        return cls(name=name, members=members, optimizer=optimizer, groups=used)

    @property
    def staging_bytes(self) -> int:
        """Buffer for the shards and their gradients."""
        return size_of(self._staged(self.members))

    @property
    def state_like(self) -> list[Tensor]:
        """Tensors shaped as the state of the unit: the moments of each parameter in turn."""
        return [member.local for member in self.members for _ in member.moments]

    def with_gradient(self) -> list[Member]:
        """The parameters that the next step updates."""
        return [member for member in self.members if member.parameter.grad is not None]

    def stage(self, members: Sequence[Member], buffer: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Places for the shard and the gradient of some of its parameters."""
        found = views(buffer, self._staged(members))
        return list(zip(found[::2], found[1::2], strict=True))

    def update(
        self,
        members: Sequence[Member],
        staged: Sequence[tuple[Tensor, Tensor]],
        state: Sequence[Tensor],
        groups: Groups,
    ) -> None:
        """One step over some parameters, in place.

        Args:
            members: those that have a gradient.
            staged: shard and gradient of each.
            state: of the whole unit, shaped as `state_like`.
            groups: hyperparameters of all groups.
        """
        for own, place in zip(self.optimizer.param_groups, self.groups, strict=True):
            own.update(groups[place])
        moments = iter(state)
        for member in self.members:
            found = {name: next(moments) for name in member.moments}
            self.optimizer.state[member.proxy] = {STEP: member.steps, **found}
        for member, (shard, gradient) in zip(members, staged, strict=True):
            member.proxy.data, member.proxy.grad = shard, gradient
        self.optimizer.step()
        for member in members:
            member.proxy.data, member.proxy.grad = member.proxy.new_empty(0), None
        self.optimizer.state.clear()

    def _staged(self, members: Sequence[Member]) -> list[Tensor]:
        return [member.local for member in members for _ in range(2)]
