"""Host buffers that units borrow in turn, and views of typed tensors in them."""

from collections.abc import Iterable
from math import prod
from queue import SimpleQueue

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64
"""Of each tensor in a buffer: a cache line."""


class Staging:
    """A fixed number of equal buffers; who finds none free waits.

    Args:
        num_buffers: how many.
        buffer_bytes: of each.
        pin: whether copies from and to an accelerator may run beside other work.
    """

    def __init__(self, num_buffers: int, buffer_bytes: int, *, pin: bool) -> None:
        self.num_buffers, self.buffer_bytes = num_buffers, buffer_bytes
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(num_buffers):
            self._free.put(torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pin))

    def borrow(self) -> Tensor:
        """A buffer of bytes; its contents are left over from earlier."""
        return self._free.get()

    def give_back(self, buffer: Tensor) -> None:
        """Let others have it."""
        self._free.put(buffer)


def aligned(size_bytes: int) -> int:
    """Bytes that a tensor takes in a buffer."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def size_of(like: Iterable[Tensor]) -> int:
    """Bytes that tensors like these take in a buffer."""
    return sum(aligned(tensor.numel() * tensor.element_size()) for tensor in like)


def views(buffer: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """Contiguous tensors of the shapes and element types of others, one after the other in a buffer of bytes."""
    found, start = [], 0
    for tensor in like:
        size = prod(tensor.shape) * tensor.element_size()
        found.append(buffer[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += aligned(size)
    return found
