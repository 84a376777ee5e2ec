"""All-gathers and reduce-scatters by messages between pairs of ranks, with a connection for each direction.

[Note: why not gloo's collectives]
gloo sends a large message once the receiver has said that it is ready, and says so on the connection that its own
data takes the other way. A rank that comes later than the others sends at once, since they are ready, and its own
readiness stands in line behind what it sends: its transfer takes half as long again, it comes as late to the next
one, and so on for the whole step. Cards do not do that. Here what goes from lower ranks to higher ones has other
connections than what goes back, so that readiness never waits behind data.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class Exchange(dist.Work):
    """Messages under way."""

    def __init__(self, messages: list[dist.Work], finish: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._messages = messages
        self._finish = finish

    def wait(self, timeout: object = None) -> bool:
        """Until all have arrived and are added up."""
        for message in self._messages:
            message.wait()
        if self._finish is not None:
            self._finish()
        self._messages, self._finish = [], None
        return True


class Wire:
    """Between all ranks; made by all of them at once. Transfers follow each other in the order of issue."""

    def __init__(self) -> None:
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._upward, self._downward = dist.new_group(), dist.new_group()

    def all_gather(self, full: Tensor, share: Tensor) -> Exchange:
        """Begin to gather every rank's `share` [n] into `full` [ranks * n]."""
        parts = full.chunk(self._num_ranks)
        messages = [self._receive(parts[peer], peer) for peer in self._peers()]
        messages += [self._send(share, peer) for peer in self._peers()]
        own = parts[self._rank]
        if own.data_ptr() != share.data_ptr():
            own.copy_(share)
        return Exchange(messages)

    def reduce_scatter(self, output: Tensor, full: Tensor, *, divide: bool) -> Exchange:
        """Begin to add up this rank's part of every rank's `full` [ranks * n] in `output` [n], or their mean."""
        parts = full.chunk(self._num_ranks)
        first, *others = peers = self._peers()
        arriving = {first: output, **{peer: torch.empty_like(output) for peer in others}}
        messages = [self._receive(arriving[peer], peer) for peer in peers]
        messages += [self._send(parts[peer], peer) for peer in peers]

        def add_up() -> None:
            for part in (parts[self._rank], *(arriving[peer] for peer in others)):
                output.add_(part)
            if divide:
                output.div_(self._num_ranks)

        return Exchange(messages, add_up)

    def _peers(self) -> list[int]:
        """All others, the next one first, so that not all send to the same."""
        return [(self._rank + step) % self._num_ranks for step in range(1, self._num_ranks)]

    def _send(self, tensor: Tensor, peer: int) -> dist.Work:
        work = dist.isend(tensor, peer, group=self._upward if self._rank < peer else self._downward)
        assert work is not None
        return work

    def _receive(self, tensor: Tensor, peer: int) -> dist.Work:
        work = dist.irecv(tensor, peer, group=self._upward if peer < self._rank else self._downward)
        assert work is not None
        return work
