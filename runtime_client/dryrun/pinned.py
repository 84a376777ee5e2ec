"""Pinned host memory, which fake tensors do not have."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class PinnedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`.pin_memory()` of a fake host tensor is a copy that `.is_pinned()` knows again.

    Enter it inside fake tensor mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - the dispatcher's own types, here and below
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is torch.ops.aten._pin_memory.default:
            pinned = torch.clone(args[0])
            self._storages.add(_storage_of(pinned))
            return pinned
        if func is torch.ops.aten.is_pinned.default and _storage_of(args[0]) in self._storages:
            return True
        return func(*args, **(kwargs or {}))


def _storage_of(tensor: Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return storage
