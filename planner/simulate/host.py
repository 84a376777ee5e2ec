"""Host memory of offloaded units (`CPUOffloadPolicy`), optimizer state and activations, on one rank."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from planner.program.events import Operation, OperationKind, Program
from planner.program.inputs import LocalShards, OptimizerBytes, local_shards, units_of
from planner.program.sizes import UnitBytes
from planner.program.step import Knobs, StepInputs
from planner.program.units import Partition
from planner.schema import ActivationPolicy
from planner.simulate.allocator import pinned_bytes
from planner.simulate.offloaded_state import StateMemory, tier_off_device, units_off_device


class Change(NamedTuple):
    """Tensors that come to the host within a step, or (`is_gone`) leave it."""

    sizes: tuple[int, ...]
    is_gone: bool = False
    is_pinned: bool = True

    def signed(self, rounded: Callable[[int], int]) -> int:
        """Bytes more, or fewer; `rounded` is what a pinned tensor takes."""
        size = sum(map(rounded, self.sizes)) if self.is_pinned else sum(self.sizes)
        return -size if self.is_gone else size


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
    found: tuple[int, ...] = ()
    """Of these gradients, those that the last micro-batch finds."""
    activations: tuple[int, ...] = ()
    """Of each storage that an offloaded call keeps, within a micro-batch."""
    optimizer_transient_bytes: int = 0
    """What the optimizer step needs on top."""
    staging: tuple[int, ...] = ()
    """Pinned buffers that are always there."""
    changes: tuple[Change, ...] = ()
    """Copies of the last micro-batch in the order of issue; only where activations, or gradients that are not
    found, come beside other gradients, since then not all of them need be there at one time."""

    @classmethod
    def of(
        cls,
        sizes: Iterable[tuple[UnitBytes, bool]],
        *,
        optimizer_bytes: int,
        activations: tuple[int, ...] = (),
        optimizer_transient_bytes: int = 0,
        changes: tuple[Change, ...] = (),
        off_device: StateMemory = StateMemory(),
    ) -> Self:
        """Of the units on the host.

        Args:
            sizes: of each of them, and whether some micro-batch finds its sharded gradients.
            optimizer_bytes: the optimizer's state for their parameters.
            activations: storages that offloaded calls keep.
            optimizer_transient_bytes: what the optimizer step needs on top.
            changes: within the last micro-batch.
            off_device: optimizer state of units that are not on the host.
        """
        units = list(sizes)
        gradients = tuple(size for unit, _ in units for size in _sharded_gradients(unit))
        found = tuple(size for unit, is_found in units if is_found for size in _sharded_gradients(unit))
        return cls(
            shards=tuple(piece.stored for unit, _ in units for piece in unit.pieces),
            gradients=gradients,
            found=found,
            optimizer_bytes=optimizer_bytes + off_device.host_bytes,
            activations=activations,
            optimizer_transient_bytes=optimizer_transient_bytes + off_device.transient_bytes,
            staging=off_device.staging,
            changes=changes if gradients and (activations or found not in ((), gradients)) else (),
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
        kept = sum(map(rounded, self.shards)) + sum(map(rounded, self.staging)) + self.optimizer_bytes
        gradients = sum(map(rounded, self.gradients))
        if self.changes:
            levels = accumulate(change.signed(rounded) for change in self.changes)
            found = sum(map(rounded, self.found))
            return kept + max(found + max(levels), gradients + self.optimizer_transient_bytes)
        in_micro_batch = sum(map(rounded, self.activations)) + max(self.found, default=0)
        return kept + gradients + max(in_micro_batch, self.optimizer_transient_bytes)


def host_memory(
    inputs: StepInputs,
    knobs: Knobs,
    last: Program,
    accumulating: Collection[int],
    *,
    state_bytes: OptimizerBytes,
    transient_bytes: Callable[[LocalShards], int],
    off_device: StateMemory,
) -> HostMemory:
    """Of a step that the plan's knobs describe.

    Args:
        inputs: of the step.
        knobs: fixed as a plan says.
        last: its last micro-batch.
        accumulating: units of which some micro-batch finds sharded gradients.
        state_bytes: optimizer state of a shard.
        transient_bytes: what the optimizer step of some shards needs on top.
        off_device: optimizer state of units that are not on the host.
    """
    units = units_of(inputs.partition, knobs, on_host=True)
    shards = local_shards(inputs.partition, knobs.meshes, units)
    return HostMemory.of(
        ((inputs.sizes[unit], unit in accumulating) for unit in units),
        optimizer_bytes=sum(state_bytes(*shard) for shard in shards),
        activations=offloaded_activations(inputs, knobs),
        optimizer_transient_bytes=transient_bytes(shards),
        changes=host_changes(inputs, last, accumulating),
        off_device=off_device,
    )


def state_memory(parts: Partition, knobs: Knobs, transient_bytes: Callable[[LocalShards], int]) -> StateMemory:
    """Of optimizer state that is off the device while its parameters are there."""
    return StateMemory.of(units_off_device(parts, knobs), tier_off_device(knobs), transient_bytes)


def offloaded_activations(inputs: StepInputs, knobs: Knobs) -> tuple[int, ...]:
    """Bytes of each storage that offloaded calls keep on the host."""
    model = inputs.partition.model
    return tuple(
        tensor.size_bytes.at(inputs.micro_batch, inputs.sequence)
        for call, choice in knobs.activation.items()
        if any(activation.policy is ActivationPolicy.OFFLOAD for activation, _ in choice)
        for tensor in model.kinds[model.calls[call].kind].none.saved
    )


def host_changes(inputs: StepInputs, program: Program, found: Collection[int]) -> tuple[Change, ...]:
    """What a micro-batch copies to the host and back, in the order of issue; it finds gradients of some units."""
    model = inputs.partition.model
    changes: list[Change] = []
    kinds = {call.path: call.kind for call in model.calls}
    for event in program.events:
        match event:
            case Operation(kind=OperationKind.ACTIVATION_OUT | OperationKind.ACTIVATION_IN):
                saved = model.kinds[kinds[event.owner]].none.saved
                sizes = tuple(tensor.size_bytes.at(inputs.micro_batch, inputs.sequence) for tensor in saved)
                changes.append(Change(sizes, is_gone=event.kind is OperationKind.ACTIVATION_IN))
            case Operation(kind=OperationKind.OFFLOAD):
                sizes = tuple(_sharded_gradients(inputs.sizes[event.unit]))
                if event.unit not in found:
                    changes.append(Change(sizes))
                else:
                    added = (max(sizes, default=0),)
                    changes += [Change(added, is_pinned=False), Change(added, is_gone=True, is_pinned=False)]
            case _:
                pass
    return tuple(changes)


def _sharded_gradients(unit: UnitBytes) -> list[int]:
    """As large as the shards of their parameters; one for all where some are zeros, which the sizes do not tell."""
    sizes = [piece.stored for piece in unit.pieces if piece.gradient]
    return sizes if sum(sizes) == unit.sharded_gradients else [unit.sharded_gradients]
