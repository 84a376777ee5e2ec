"""Counts the bytes of activation-like storages alive, by identity of storage."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Label = tuple[int, int]
"""(call that made the storage, how many it had made before): the same in every run of the model."""


@dataclass(slots=True, kw_only=True)
class Storage:
    """An activation-like storage.

    Attributes:
        label: where it comes from.
        size_bytes: its size.
        op: operation that made it.
        savers: for each call that keeps it for backward, the region in which it first did.
        is_alive: whether anything still holds it.
        last_call: once it is freed, the last call at whose end it was still alive.
        is_gradient: whether it has become the gradient of a parameter.
    """

    label: Label
    size_bytes: int
    op: str
    savers: dict[int, int] = field(default_factory=dict)
    is_alive: bool = True
    last_call: int = -1
    is_gradient: bool = False


class Storages:
    """The storages of one run. `live_bytes` follows allocations and frees at once."""

    def __init__(self, outside: Iterable[Tensor]) -> None:
        """Start a run.

        Args:
            outside: tensors that are no activations: parameters, buffers and inputs of the model. The caller keeps
                them alive.
        """
        self.live_bytes = 0
        self.last_ended = -1
        """Last call of the forward that has ended."""
        self.all: list[Storage] = []
        self._outside = {_identity(tensor) for tensor in outside}
        self._alive: dict[int, Storage] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._ignored: list[torch.UntypedStorage] = []

    def find(self, tensor: Tensor) -> Storage | None:
        """The storage of a tensor, None for one from outside."""
        return self._alive.get(_identity(tensor))

    def is_new(self, tensor: Tensor) -> bool:
        """Whether this storage has not been met before."""
        identity = _identity(tensor)
        return identity not in self._alive and identity not in self._outside

    def add(self, tensor: Tensor, label: Label, op: str) -> None:
        """Count a storage that an operation has just allocated."""
        untyped = tensor.untyped_storage()
        storage = Storage(label=label, size_bytes=untyped.nbytes(), op=op)
        identity = untyped._cdata
        self._alive[identity] = storage
        self._references[identity] = weakref.ref(untyped, self._release(identity))
        self.all.append(storage)
        self.live_bytes += storage.size_bytes

    def ignore(self, tensor: Tensor) -> None:
        """Take a storage that existed before the run for one from outside."""
        self._ignored.append(tensor.untyped_storage())
        self._outside.add(_identity(tensor))

    def become_gradient(self, tensor: Tensor) -> None:
        """Stop counting a storage: it now is the gradient of a parameter."""
        storage = self.find(tensor)
        if storage is not None and not storage.is_gradient:
            storage.is_gradient = True
            self.live_bytes -= storage.size_bytes

    def _release(self, identity: int) -> Callable[[object], None]:
        def release(_: object) -> None:
            storage = self._alive.pop(identity)
            del self._references[identity]
            storage.is_alive = False
            storage.last_call = self.last_ended
            if not storage.is_gradient:
                self.live_bytes -= storage.size_bytes

        return release


def _identity(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
