"""What autograd keeps of one run of an offloaded module, and where it is."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Key = tuple[str, int]
"""Path of an offloaded module and how often it ran before in the same forward."""


class Stored:
    """A whole storage, flat: on the host, and on the device while it is needed there."""

    def __init__(self, view: Tensor, *, pin: bool) -> None:
        """Begin to copy the storage of `view` to the host, on the current stream."""
        size = (view.untyped_storage().nbytes() // view.element_size(),)
        self.on_device: Tensor | None = view.as_strided(size, (1,), 0)
        self._device = view.device
        self._on_host = torch.empty(size, dtype=view.dtype, device="cpu", pin_memory=pin)
        self._on_host.copy_(self.on_device, non_blocking=True)

    @property
    def size_bytes(self) -> int:
        """Bytes of the storage."""
        return self._on_host.nbytes

    def make_room(self) -> None:
        """Allocate on the device, on the current stream."""
        self.on_device = torch.empty_like(self._on_host, device=self._device, pin_memory=False)

    def fetch(self) -> None:
        """Begin to copy to the device, on the current stream."""
        assert self.on_device is not None
        self.on_device.copy_(self._on_host, non_blocking=True)


class Saved:
    """A tensor that autograd saved; the tensor itself only until its storage is on the host alone."""

    def __init__(self, tensor: Tensor, run: "Run | None") -> None:
        self.run = run
        self.stored: Stored | None = None
        self.identity = int(tensor.untyped_storage()._cdata)
        self._tensor: Tensor | None = tensor.detach()  # an output would hold the node that holds it
        self._version = tensor._version
        self._view = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
        self._is_modified = False

    @property
    def on_device(self) -> Tensor:
        """The tensor as it was saved, while it is held."""
        assert self._tensor is not None
        return self._tensor

    def unchanged(self) -> Tensor:
        """The tensor, for backward.

        Raises:
            RuntimeError: it was modified in place; autograd checks that only where no hooks are.
        """
        if self._is_modified or self.on_device._version != self._version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self._view[0])} that is needed for backward was modified in place after "
                "autograd saved it. Clone it before."
            )
        return self.on_device

    def release(self) -> None:
        """Hold the tensor no longer, unless it was modified amid the copy: then it must not be used."""
        self._is_modified = self.on_device._version != self._version
        if not self._is_modified:
            self._tensor = None

    def restored(self) -> Tensor:
        """The tensor, or its like over the fetched storage."""
        if self._tensor is not None:
            return self.unchanged()
        assert self.stored is not None
        assert self.stored.on_device is not None
        size, stride, offset, dtype = self._view
        return self.stored.on_device.view(dtype).as_strided(size, stride, offset)

    def can_move(self, device_type: str) -> bool:
        """Whether a flat copy of its storage is all there is to the tensor."""
        tensor = self.on_device
        has_parts = hasattr(tensor, "__tensor_flatten__")  # a subclass over other tensors
        return (
            tensor.device.type == device_type
            and tensor.layout is torch.strided
            and not (has_parts or tensor.is_quantized)
            and not (tensor.is_conj() or tensor.is_neg())
            and tensor._version == self._version
        )


@dataclass(slots=True, weakref_slot=True, eq=False)
class Run:
    """One forward of an offloaded module. Autograd owns its handles, and these what is stored."""

    key: Key
    copied: Any = None
    """Event of the stream after the latest copies."""
    is_begun: bool = False
    """Its backward has begun."""
    forward: list["weakref.ref[Run]"] = field(default_factory=list)
    """Runs of the same forward of the model that sent something to the host, in order."""
    _saved: list["weakref.ref[Saved]"] = field(default_factory=list)
    _held: list[Stored] = field(default_factory=list)

    def pack(self, tensor: Tensor) -> Saved:
        """Hook of `saved_tensors_hooks`."""
        saved = Saved(tensor, self)
        self._saved.append(weakref.ref(saved))
        return saved

    def by_storage(self, device_type: str) -> list[list[Saved]]:
        """Handles that autograd still has, by storage in the order of saving; only what can be moved."""
        groups: dict[int, list[Saved]] = {}
        for saved in self._alive():
            groups.setdefault(saved.identity, []).append(saved)
        return [group for group in groups.values() if _can_move(group, device_type)]

    def keep(self, stored: Stored, handles: list[Saved]) -> None:
        """Note a storage of which a copy to the host has begun."""
        self._held.append(stored)
        for saved in handles:
            saved.stored = stored

    def release(self) -> None:
        """Hold the device tensors no longer."""
        for saved in self._alive():
            if saved.stored is not None:
                saved.release()
        for stored in self._held:
            stored.on_device = None
        self._held.clear()

    def stored(self) -> list[Stored]:
        """Storages that backward may still need."""
        found = {id(saved.stored): saved.stored for saved in self._alive()}
        return [stored for stored in found.values() if stored is not None]

    def before(self) -> "Run | None":
        """The run before it that backward may still need."""
        runs = [reference() for reference in self.forward]
        earlier = runs[: runs.index(self)] if self in runs else []
        return next((run for run in reversed(earlier) if run is not None and run.stored()), None)

    def _alive(self) -> Iterator[Saved]:
        for reference in self._saved:
            saved = reference()
            if saved is not None:
                yield saved


def _can_move(group: list[Saved], device_type: str) -> bool:
    num_bytes = group[0].on_device.untyped_storage().nbytes()
    return num_bytes > 0 and all(
        saved.can_move(device_type) and num_bytes % saved.on_device.element_size() == 0 for saved in group
    )


class Survey:
    """Who saves which storage in one forward of the model."""

    def __init__(self) -> None:
        self._savers: dict[StorageWeakRef, set[Key | None]] = {}
        """None stands for whatever is no offloaded module."""
        self._kept: dict[Key, list[StorageWeakRef]] = {}

    def pack(self, tensor: Tensor) -> Saved:
        """Hook of `saved_tensors_hooks` for the code outside of offloaded modules."""
        self.note(tensor, None)
        return Saved(tensor, None)

    def note(self, tensor: Tensor, saver: Key | None) -> StorageWeakRef:
        """Note that someone saves a tensor."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._savers.setdefault(reference, set()).add(saver)
        return reference

    def note_run(self, key: Key, tensors: list[Tensor]) -> None:
        """Note what an offloaded module saves, a tensor of each storage."""
        self._kept[key] = [self.note(tensor, key) for tensor in tensors]

    def shared(self) -> dict[Key, tuple[bool, ...]]:
        """For each run, by storage in the order of saving, whether others save it too."""
        return {key: tuple(len(self._savers[one]) > 1 for one in kept) for key, kept in self._kept.items()}


def unchanged(saved: Saved) -> Tensor:
    """Hook of `saved_tensors_hooks`: what `Survey.pack` took."""
    return saved.unchanged()
