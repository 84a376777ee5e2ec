"""Bytes that a call keeps and needs, counted on real tensors; the same on every device.

Counts storages that operations make, not what an allocator rounds them to, nor workspaces inside kernels.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBytes:
    """Of one forward and backward; see the fields of `CallMeasurement`."""

    kept: int
    forward_transient: int
    backward_transient: int


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make while it is on.

    Attributes:
        peak: most bytes that were alive at once since `restart`.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self._alive = 0
        self.peak = 0

    def restart(self) -> None:
        """Measure the peak from here on; what is alive still counts."""
        self.peak = self._alive

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        result = func(*args, **kwargs or {})
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self._alive -= self._sizes.pop(key, 0)


def call_bytes(
    forward: Callable[[], object],
    backward: Callable[[object], object],
    *,
    parameters: list[Tensor],
    inputs: list[Tensor],
) -> CallBytes:
    """Run a call once and count.

    Args:
        forward: runs it and returns its output.
        backward: gets the output and runs the backward; does nothing where there is none.
        parameters: parameters and buffers, which count nowhere.
        inputs: tensor arguments, which count as kept where autograd saves them.
    """
    of_model = {tensor.untyped_storage()._cdata for tensor in parameters}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in of_model:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with LiveBytes([*parameters, *inputs]) as live:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = forward()
        forward_peak = live.peak
        live.restart()
        backward(output)
    return CallBytes(kept=sum(kept.values()), forward_transient=forward_peak, backward_transient=live.peak)
