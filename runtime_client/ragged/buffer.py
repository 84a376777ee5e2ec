"""One planned buffer of a unit: a flat parameter for FSDP2, and the original parameters for everybody else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from runtime_client.ragged import private
from runtime_client.ragged.errors import FrozenBuffer
from runtime_client.ragged.gradient import GradientPlan, Place, PlannedGradient
from runtime_client.ragged.tensor import RaggedTensor, Spread, slice_like

_FLAT = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A parameter in a buffer."""

    name: str
    """Original name; the first one of a tied parameter."""
    owners: tuple[tuple[nn.Module, str], ...]
    """Modules that hold it, with the attribute; several where it is tied."""
    shape: tuple[int, ...]
    place: Place

    def show(self, parameter: nn.Parameter | None) -> None:
        """Register a parameter wherever the original was."""
        for module, attribute in self.owners:
            setattr(module, attribute, parameter)

    @property
    def shown(self) -> list[nn.Parameter]:
        """What is registered now, by each owner."""
        return [cast(nn.Parameter, module._parameters[attribute]) for module, attribute in self.owners]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What this rank has of a parameter: elements `start .. end - 1` of its shard."""

    spread: Spread
    start: int
    end: int
    shape: tuple[int, ...]


class FlatHolder(nn.Module):
    """The module that FSDP2 believes to hold the flat parameter; in the module tree only while it is sharded.

    FSDP2 sets the flat parameter here whenever it gathers or reshards, and reads it after `Module._apply`.
    """

    def __init__(self, flat: nn.Parameter) -> None:
        super().__init__()
        self.flat = flat

    def watch(self, on_set: Callable[[nn.Parameter], None], on_get: Callable[[], None]) -> None:
        """Call `on_set` with each parameter that is set from now on, and `on_get` before one is read."""
        self.__dict__.update(on_set=on_set, on_get=on_get)

    def put(self, flat: nn.Parameter) -> None:
        """Set the flat parameter without telling the watcher."""
        self._parameters[_FLAT] = flat

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        super().__setattr__(name, value)
        if name == _FLAT and "on_set" in self.__dict__:
            self.__dict__["on_set"](value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == _FLAT and "on_get" in self.__dict__:
            self.__dict__["on_get"]()
        return super().__getattr__(name)


class PlannedBuffer:
    """The parameters of one layout, as one flat parameter `(ranks * shard_elements,)` with even shards.

    While the unit is sharded its modules show pieces: `RaggedTensor`s with the original names and shapes, whose
    local tensors are views of the flat shard. While it is gathered they show leaves: views of the gathered buffer,
    whose gradients autograd accumulates one by one.
    """

    def __init__(self, name: str, slots: Sequence[Slot], *, shard_elements: int, num_ranks: int) -> None:
        self.name = name
        self.slots = tuple(slots)
        self.shard_elements = shard_elements
        self.num_elements = shard_elements * num_ranks
        self.holder = FlatHolder(_flatten(self.slots, self.num_elements))
        self.pieces: list[nn.Parameter] = []
        """Of each slot, once sharded."""
        self.unsharded: nn.Parameter | None = None
        """The gathered buffer as FSDP2 made it, once it has been gathered; its storage comes and goes."""
        self._parts: list[_Part] = []
        self._leaves: list[nn.Parameter] = []
        self._with_gradient: set[int] = set()
        self._group: Any = None
        self.fsdp_param: Any = None
        self._gradient_plan = GradientPlan(
            num_elements=self.num_elements,
            places=tuple(slot.place for slot in self.slots),
            on_reduce=self._with_gradient.update,
        )

    def attach(self, unit: nn.Module) -> None:
        """Take over the names, once `fully_shard` has sharded the flat parameter as one of `unit`."""
        sharded = self.holder.flat
        self._parts = [self._part(slot, cast(DTensor, sharded).device_mesh) for slot in self.slots]
        self._group, self.fsdp_param = private.fsdp_param_of(unit, sharded)
        private.name_in_errors(self.fsdp_param, f"{self.name} ({', '.join(slot.name for slot in self.slots)})")
        self.pieces = [
            nn.Parameter(self._cut(index, cast(DTensor, sharded)), requires_grad=sharded.requires_grad)
            for index in range(len(self.slots))
        ]
        if sharded.requires_grad:
            sharded.register_post_accumulate_grad_hook(self._hand_on_gradient)  # type: ignore[no-untyped-call]
        self._show(self.pieces)
        self.holder.watch(self._on_set, self._adopt)

    @property
    def group(self) -> Any:  # noqa: ANN401
        """FSDPParamGroup of the unit."""
        return self._group

    def _sharded(self) -> nn.Parameter:
        return cast(nn.Parameter, self.fsdp_param.sharded_param)

    def _cut(self, index: int, flat: DTensor) -> RaggedTensor:
        """What this rank's shard of a flat tensor has of one parameter, as a view."""
        part = self._parts[index]
        local = private.local_of(flat).detach()
        view = local[part.start : part.end] if part.end > part.start else local.new_empty(0)
        return RaggedTensor(view.view(part.shape), part.spread, self.slots[index].shape)

    def _part(self, slot: Slot, mesh: DeviceMesh) -> "_Part":
        place = slot.place
        lows = range(0, self.num_elements, self.shard_elements)
        ends = ((low, low + self.shard_elements) for low in lows)
        sizes = tuple(max(0, min(place.end, high) - max(place.offset, low)) for low, high in ends)
        spread = Spread(mesh, sizes)
        start = max(place.offset - spread.rank * self.shard_elements, 0)
        return _Part(spread=spread, start=start, end=start + spread.num_local, shape=spread.local_shape(slot.shape))

    def _on_set(self, flat: nn.Parameter) -> None:
        if isinstance(flat, DTensor):  # the shard, or that of partial resharding
            self._show(self.pieces)
            return
        if flat is not self.unsharded:
            self.unsharded = flat
            self._leaves = [self._leaf(index, flat) for index in range(len(self.slots))]
        for slot, leaf, piece in zip(self.slots, self._leaves, self.pieces, strict=True):
            if leaf.requires_grad != piece.requires_grad:
                self._refuse_thawing(slot, piece)
                leaf.requires_grad_(piece.requires_grad)
        self._show(self._leaves)

    def _refuse_thawing(self, slot: Slot, piece: nn.Parameter) -> None:
        if piece.requires_grad and not self._sharded().requires_grad:
            raise FrozenBuffer(
                f"parameter {slot.name!r} was frozen when the plan was applied, as is its buffer {self.name!r}. "
                "Plan again with the parameter trainable."
            )

    def _show(self, parameters: list[nn.Parameter]) -> None:
        for slot, parameter in zip(self.slots, parameters, strict=True):
            slot.show(parameter)

    def _leaf(self, index: int, unsharded: nn.Parameter) -> nn.Parameter:
        slot = self.slots[index]
        place = slot.place
        with torch.no_grad():
            view = unsharded.data[place.offset : place.end].view(slot.shape)
        leaf = nn.Parameter(view, requires_grad=unsharded.requires_grad)
        if leaf.requires_grad:
            leaf.register_post_accumulate_grad_hook(lambda leaf: self._take_gradient(index, leaf))  # type: ignore[no-untyped-call]
        return leaf

    def _take_gradient(self, index: int, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        unsharded = self.unsharded
        assert gradient is not None
        assert unsharded is not None
        planned = unsharded.grad
        if isinstance(planned, PlannedGradient):
            planned.add_part(index, gradient)
        else:
            unsharded.grad = PlannedGradient(
                self._gradient_plan, {index: gradient}, dtype=gradient.dtype, device=gradient.device
            )

    def _hand_on_gradient(self, sharded: Tensor) -> None:
        """Move the reduced gradient of the flat shard to the pieces."""
        reduced, sharded.grad = cast(DTensor, sharded.grad), None
        everyone = not self._with_gradient or private.reduces_unused(self._group)
        for index, piece in enumerate(self.pieces):
            if not piece.requires_grad or not (everyone or index in self._with_gradient):
                continue
            gradient: Tensor = self._cut(index, reduced)
            if piece.grad is None:
                piece.grad = gradient
            else:
                private.wait_for_offload(self.fsdp_param)
                private.local_of(piece.grad).add_(private.local_of(gradient))
            for hook in private.post_accumulate_grad_hooks(piece):
                hook(piece)
        self._with_gradient.clear()

    def _adopt(self) -> None:
        """Gather pieces into the flat shard again that were moved, cast or replaced (`Module._apply`, `assign`)."""
        sharded = cast(DTensor, self._sharded())
        old = private.local_of(sharded)
        known = {id(parameter) for parameter in (*self.pieces, *self._leaves)}
        for index, slot in enumerate(self.slots):
            new = next((parameter for parameter in slot.shown if id(parameter) not in known), None)
            if new is not None:
                taken = slice_like(new, cast(RaggedTensor, self.pieces[index]))
                self.pieces[index] = nn.Parameter(taken, requires_grad=new.requires_grad)
                slot.show(self.pieces[index])
        locals_ = [private.local_of(piece) for piece in self.pieces]
        if all(_shares_storage(local, old) for local in locals_ if local.numel()):
            return
        _refuse_half_moved(self.slots, locals_)
        made = torch.zeros(old.shape, dtype=locals_[0].dtype, device=locals_[0].device)
        again = private.make_dtensor(DTensor, made, sharded.device_mesh, sharded.placements, sharded.shape)
        flat = nn.Parameter(again, requires_grad=sharded.requires_grad)
        with torch.no_grad():
            for index, piece in enumerate(self.pieces):
                view = self._cut(index, cast(DTensor, flat))._local_tensor
                cast(RaggedTensor, piece)._local_tensor = view.copy_(locals_[index])
        if flat.requires_grad:
            flat.register_post_accumulate_grad_hook(self._hand_on_gradient)  # type: ignore[no-untyped-call]
        self.holder.put(flat)


def _flatten(slots: tuple[Slot, ...], num_elements: int) -> nn.Parameter:
    """Move the original parameters into a new flat one; each is dropped as soon as it is copied."""
    first = slots[0].shown[0]
    flat = torch.zeros(num_elements, dtype=first.dtype, device=first.device)
    trainable = first.requires_grad
    del first
    for slot in slots:
        with torch.no_grad():
            flat[slot.place.offset : slot.place.end].copy_(slot.shown[0].detach().reshape(-1))
        slot.show(None)
    return nn.Parameter(flat, requires_grad=trainable)


def _shares_storage(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _refuse_half_moved(slots: tuple[Slot, ...], locals_: list[Tensor]) -> None:
    kinds = {(local.dtype, local.device) for local in locals_ if local.numel()}
    if len(kinds) > 1:
        names = ", ".join(f"{slot.name} ({x.dtype}, {x.device})" for slot, x in zip(slots, locals_, strict=True))
        raise ValueError(f"parameters of one ragged buffer were moved or cast apart: {names}. Treat them alike.")
