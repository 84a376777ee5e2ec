"""Where the state of units lives between their steps."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from runtime_client.offload.staging import size_of, views
from runtime_client.offload.unit_step import UnitStep


class StateStore(Protocol):
    """Gives out the state of a unit for one update and takes it back; each of the two in a thread of its own."""

    def load(self, unit: int) -> Tensor:
        """The state of a unit as a buffer of bytes, zeros at first; may wait until a buffer is free."""

    def store(self, unit: int, buffer: Tensor, *, is_updated: bool) -> None:
        """Take a buffer back, and keep what is in it unless its update failed."""

    def view(self, unit: int) -> list[Tensor]:
        """The state as it was after the last complete step."""

    @property
    def num_steps(self) -> int:
        """Steps of the optimizer before the state that it began with."""

    def replace(self, states: Sequence[Sequence[Tensor] | None], *, num_steps: int) -> None:
        """Take over the state of all units after so many steps; None for those that have none yet."""

    def begin_step(self) -> None:
        """A step begins; the one before is complete."""

    def end_step(self, num_steps: int) -> None:
        """All units of a step were stored, so that the optimizer has done so many."""

    def close(self) -> None:
        """Let go of everything."""


class HostStore:
    """State in host memory. It is not pinned: only the CPU reads and writes it."""

    def __init__(self, units: Sequence[UnitStep]) -> None:
        self._like = [unit.state_like for unit in units]
        self._buffers: dict[int, Tensor] = {}

    def load(self, unit: int) -> Tensor:
        """The memory itself."""
        if unit not in self._buffers:
            self._buffers[unit] = torch.zeros(size_of(self._like[unit]), dtype=torch.uint8)
        return self._buffers[unit]

    def store(self, unit: int, buffer: Tensor, *, is_updated: bool) -> None:
        """Nothing to do: updates happen in place."""

    def view(self, unit: int) -> list[Tensor]:
        """Tensors over the memory itself."""
        return views(self.load(unit), self._like[unit])

    @property
    def num_steps(self) -> int:
        """None: it begins empty."""
        return 0

    def replace(self, states: Sequence[Sequence[Tensor] | None], *, num_steps: int) -> None:
        """Copy into the memory that is there."""
        for unit, state in enumerate(states):
            for place, tensor in zip(self.view(unit), state or (), strict=state is not None):
                place.copy_(tensor)

    def begin_step(self) -> None:
        """Nothing to do."""

    def end_step(self, num_steps: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""
