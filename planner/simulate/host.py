"""Host memory of the units whose shards are offloaded (`CPUOffloadPolicy`), on one rank."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from planner.program.sizes import UnitBytes
from planner.program.step import Knobs, StepInputs
from planner.schema import ActivationPolicy
from planner.simulate.allocator import pinned_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes at the worst moment of a step.

    Shards and sharded gradients are pinned, parameter by parameter. The optimizer's state is not, and neither is
    the copy of a gradient that is about to be added to another: FSDP2 of torch 2.13 brings these over one at a time
    (`foreach_reduce`).
    """

    shards: tuple[int, ...] = ()
    """Of each parameter."""
    gradients: tuple[int, ...] = ()
    """Of each parameter that has one."""
    optimizer_bytes: int = 0
    added_bytes: int = 0
    """The largest copy that is added to a gradient; 0 when nothing is accumulated."""
    activations: tuple[int, ...] = ()
    """Of each storage that an offloaded call keeps, within a micro-batch."""
    optimizer_transient_bytes: int = 0
    """What the optimizer step needs on top."""

    @classmethod
    def of(
        cls,
        sizes: Iterable[UnitBytes],
        *,
        optimizer_bytes: int,
        accumulates: bool,
        activations: tuple[int, ...] = (),
        optimizer_transient_bytes: int = 0,
    ) -> Self:
        """Of the units on the host.

        Args:
            sizes: of each of them.
            optimizer_bytes: the optimizer's state for their parameters.
            accumulates: some micro-batch finds sharded gradients.
            activations: storages that offloaded calls keep.
            optimizer_transient_bytes: what the optimizer step needs on top.
        """
        units = list(sizes)
        gradients = tuple(size for unit in units for size in _sharded_gradients(unit))
        return cls(
            shards=tuple(piece.stored for unit in units for piece in unit.pieces),
            gradients=gradients,
            optimizer_bytes=optimizer_bytes,
            added_bytes=max(gradients, default=0) if accumulates else 0,
            activations=activations,
            optimizer_transient_bytes=optimizer_transient_bytes,
        )

    @property
    def total_bytes(self) -> int:
        """What the tensors take."""
        return self._total(lambda size: size)

    @property
    def reserved_bytes(self) -> int:
        """The same with pinned tensors rounded up to powers of two, as torch's allocator of pinned memory does."""
        return self._total(pinned_bytes)

    def _total(self, rounded: Callable[[int], int]) -> int:
        persistent = sum(map(rounded, (*self.shards, *self.gradients))) + self.optimizer_bytes
        in_micro_batch = sum(map(rounded, self.activations)) + self.added_bytes
        return persistent + max(in_micro_batch, self.optimizer_transient_bytes)


def offloaded_activations(inputs: StepInputs, knobs: Knobs) -> tuple[int, ...]:
    """Bytes of each storage that offloaded calls keep on the host."""
    model = inputs.partition.model
    return tuple(
        tensor.size_bytes.at(inputs.micro_batch, inputs.sequence)
        for call, choice in knobs.activation.items()
        if any(activation.policy is ActivationPolicy.OFFLOAD for activation, _ in choice)
        for tensor in model.kinds[model.calls[call].kind].none.saved
    )


def _sharded_gradients(unit: UnitBytes) -> list[int]:
    """As large as the shards of their parameters; one for all where some are zeros, which the sizes do not tell."""
    sizes = [piece.stored for piece in unit.pieces if piece.gradient]
    return sizes if sum(sizes) == unit.sharded_gradients else [unit.sharded_gradients]
