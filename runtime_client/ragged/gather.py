"""All-gathers whose output is the gathered parameter itself, so that nothing is copied out of a second buffer."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from runtime_client.ragged import private
from runtime_client.ragged.buffer import PlannedBuffer

aten = torch.ops.aten


class GatheredInPlace(torch.Tensor):
    """The storage of a gathered buffer, posing as the all-gather output that FSDP2 copies into it."""

    gathered: Tensor

    __torch_function__ = private.NO_TORCH_FUNCTION  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type["GatheredInPlace"], gathered: Tensor) -> "GatheredInPlace":  # noqa: D102
        made = torch.Tensor._make_wrapper_subclass(
            cls, gathered.shape, dtype=gathered.dtype, device=gathered.device
        )
        made.gathered = gathered
        return made

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"GatheredInPlace({tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Names of the tensors inside, for tools that count memory."""
        return ["gathered"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], _context: None, _size: object, _stride: object
    ) -> "GatheredInPlace":
        return GatheredInPlace(inner["gathered"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]  # noqa: ANN001, ANN206
        kwargs = kwargs or {}
        if func is private.COPY_IN:
            inputs, output, *rest = args
            return func(inputs, output.gathered, *rest)[0], output
        if func is private.COPY_OUT:
            return None
        if func in (aten.view.default, aten.detach.default):
            return GatheredInPlace(func(args[0].gathered, *args[1:]))
        raise NotImplementedError(f"{func} of the all-gather output of an aliased buffer")


class GatheredMemory:
    """When the storages of the aliased buffers of a model are freed.

    FSDP2 frees a gathered parameter while the device may still read it, and relies on memory and readers being of
    one stream. An aliased buffer is allocated for the stream that gathers, so what is gathered next must wait for
    its last reader. In backward FSDP2 starts no gather before the unit before is done with, so waiting costs
    nothing. In forward the buffer freed last stays for one more gather, and only the one before is waited for:
    two buffers are alive, the next unit is gathered while one computes.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[AliasedAllGather, torch.Event]] = deque()

    def release(self, gather: "AliasedAllGather") -> None:
        """The unit is done with its buffer, as far as the host has got."""
        self._pending.append((gather, private.record_event(gather.buffer.group)))
        if private.in_backward():
            self.flush()

    def reserve(self, gather: "AliasedAllGather") -> None:
        """Make the later gathers safe, before `gather` gets its memory back."""
        self._free_down_to(0 if private.in_backward() else 1)
        for entry in [entry for entry in self._pending if entry[0] is gather]:
            self._pending.remove(entry)
            private.gathers_wait_for(gather.buffer.group, entry[1])

    def flush(self, *_: object) -> None:
        """Free all that is not in use; called at the end of the root's forward too."""
        self._free_down_to(0)

    def _free_down_to(self, count: int) -> None:
        while len(self._pending) > count:
            gather, event = self._pending.popleft()
            private.gathers_wait_for(gather.buffer.group, event)
            gather.free()


class AliasedAllGather(AllGather):
    """Gathers into the storage of the unsharded buffer of a unit, once FSDP2 has made one."""

    def __init__(self, buffer: PlannedBuffer, memory: GatheredMemory) -> None:
        self.buffer = buffer
        self._memory = memory
        self.free: Callable[[], None] = private.free_by(buffer.fsdp_param, lambda: self._release())

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The output: the buffer itself, or new memory while there is none of that size and element type."""
        unsharded = self.buffer.unsharded
        if unsharded is None or unsharded.numel() != prod(size) or unsharded.dtype != dtype:
            return torch.empty(*size, dtype=dtype, device=device)
        self._memory.reserve(self)
        private.alloc_storage(unsharded)
        return GatheredInPlace(unsharded.data)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather `input_tensor`, `(n,)`, of every rank into `output_tensor`, `(ranks * n,)`."""
        output = output_tensor.gathered if isinstance(output_tensor, GatheredInPlace) else output_tensor
        return private.all_gather(output, input_tensor, group, async_op=async_op)

    def _release(self) -> None:
        unsharded = self.buffer.unsharded
        if unsharded is not None and unsharded.untyped_storage().size():
            self._memory.release(self)


def alias_gathers(model: nn.Module, buffers: Sequence[tuple[nn.Module, Sequence[PlannedBuffer]]]) -> list[str]:
    """Gather in place where a unit has one buffer; gathered shards of several lie in turns and are copied apart.

    Args:
        model: The sharded root, whose forward ends a pass.
        buffers: First module and buffers of each ragged unit.

    Returns:
        Names of the buffers that are gathered in place.
    """
    memory = GatheredMemory()
    aliased = []
    for module, own in buffers:
        if len(own) == 1:
            cast(FSDPModule, module).set_custom_all_gather(AliasedAllGather(own[0], memory))
            aliased.append(own[0].name)
    model.register_forward_hook(memory.flush, always_call=True)
    return aliased
