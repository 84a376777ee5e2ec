"""Transfers of FSDP2 beside the computation, on gloo: asynchronous gathers and an asynchronous reduce-scatter.

Both go over a `Wire`.

[Note: what the hook has to do itself]
On an accelerator FSDP2 lets streams wait for events. On a CPU there are none, so that nothing waits for an
asynchronous reduce-scatter: not the reuse of its input, not the accumulation into sharded gradients, not the
optimizer. `AsyncReduceScatter` does what the events would: before FSDP2 allocates a new input it waits for the
oldest transfers until fewer than `max_in_flight` are left (`set_reduce_scatter_max_input_buffers`), and `drain`
waits for the rest. Where there is a sharded gradient already, FSDP2 would add what has not arrived: the hook takes
that gradient away, so that FSDP2 puts the new one in its place, and adds the two once the transfer is over.
Gradients have to be reduced in the type that parameters are stored in: FSDP2 would cast what has not arrived.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from benchmarks.network.wire import Wire


@dataclass(slots=True, kw_only=True)
class _Transfer:
    work: dist.Work
    replaced: list[tuple[nn.Parameter, Tensor]]
    """Parameters whose gradients of earlier micro-batches were taken away, with these."""
    buffers: tuple[Tensor, Tensor] | None
    """Alive until the transfer is over."""


class Transfers:
    """Reduce-scatters of all units of a model that are under way."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._under_way: deque[_Transfer] = deque()

    def make_room(self) -> None:
        """Wait until one more may begin."""
        while len(self._under_way) >= self._max_in_flight:
            self._finish()

    def drain(self) -> None:
        """Wait for all: call it after each backward."""
        while self._under_way:
            self._finish()

    def add(self, transfer: _Transfer) -> None:
        """One has begun."""
        self._under_way.append(transfer)

    def _finish(self) -> None:
        transfer = self._under_way.popleft()
        transfer.work.wait()
        transfer.buffers = None
        for parameter, before in transfer.replaced:
            assert parameter.grad is not None
            _local(before).add_(_local(parameter.grad))
            parameter.grad = before


class AsyncAllGather(DefaultAllocMixin, AllGather):
    """Of any unit."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        """Begin the transfer."""
        return self._wire.all_gather(output_tensor, input_tensor)


class AsyncReduceScatter(ReduceScatter):
    """Of one unit; the Note of this module tells what it does."""

    def __init__(self, wire: Wire, transfers: Transfers, parameters: Sequence[nn.Parameter]) -> None:
        self._wire = wire
        self._transfers = transfers
        self._parameters = parameters
        self._has_input = False

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: ANN401
        """FSDP2 asks for the input and then for the output of each reduction."""
        if not self._has_input:
            self._transfers.make_room()
        self._has_input = not self._has_input
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ANN401 - c10d's
        async_op: bool = False,
    ) -> dist.Work:
        """Begin the transfer."""
        assert output_tensor.dtype is self._parameters[0].dtype, "see the Note"
        work = self._wire.reduce_scatter(output_tensor, input_tensor, divide=op == dist.ReduceOp.AVG)
        replaced = [(one, one.grad) for one in self._parameters if one.grad is not None]
        for parameter, _ in replaced:
            parameter.grad = None
        buffers = (output_tensor, input_tensor)
        self._transfers.add(_Transfer(work=work, replaced=replaced, buffers=buffers))
        return work


def overlap(model: nn.Module, wire: Wire, *, max_in_flight: int) -> Transfers:
    """Give a sharded model asynchronous gathers and reduce-scatters."""
    assert isinstance(model, FSDPModule)
    model._set_unshard_async_op(True)
    transfers = Transfers(max_in_flight)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                parameters = [one.sharded_param for one in group.fsdp_params]
                module.set_custom_all_gather(AsyncAllGather(wire))
                module.set_custom_reduce_scatter(AsyncReduceScatter(wire, transfers, parameters))
    return transfers


def _local(gradient: Tensor) -> Tensor:
    return cast(Any, gradient)._local_tensor
