"""All-gathers whose output is the gathered parameter itself, so that nothing is copied out of a second buffer."""

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
    """When the storages of the aliased buffers of a model are freed; docs/model.md, "Gathers in place".

    FSDP2 frees a gathered parameter while the device may still read it, and relies on memory and readers being of
    one stream. An aliased buffer is allocated for the stream that gathers, so what is gathered next must wait for
    its last reader. In backward FSDP2 starts no gather before the unit before is done with, so waiting costs
    nothing, and memory is freed at once. While the root's forward runs, each gather frees what was let go of before
    the gather before it: the next unit is gathered while one computes. That order is the host's alone, so it can be
    predicted.
    """

    def __init__(self) -> None:
        self._in_forward = False
        self._older: list[_LetGo] = []
        """Let go before the latest gather."""
        self._recent: list[_LetGo] = []

    def begin_forward(self, *_: object) -> None:
        """The root's forward begins."""
        self._in_forward = True

    def end_forward(self, *_: object) -> None:
        """The root's forward is over: nothing waits to be freed any more."""
        self._in_forward = False
        self._free_all()

    def release(self, gather: "AliasedAllGather") -> None:
        """The unit is done with its buffer, as far as the host has got."""
        self._recent.append((gather, private.record_event(gather.buffer.group)))
        if not self._in_forward:
            self._free_all()

    def reserve(self, gather: "AliasedAllGather") -> None:
        """Make the later gathers safe, before `gather` gets its memory back."""
        for let_go in (self._older, self._recent):
            for entry in [entry for entry in let_go if entry[0] is gather]:
                let_go.remove(entry)
                private.gathers_wait_for(gather.buffer.group, entry[1])
        _free(self._older)
        self._older, self._recent = self._recent, []

    def _free_all(self) -> None:
        _free(self._older)
        _free(self._recent)


def _free(let_go: "list[_LetGo]") -> None:
    for gather, event in let_go:
        private.gathers_wait_for(gather.buffer.group, event)
        gather.free()
    let_go.clear()


class AliasedAllGather(AllGather):
    """Gathers into the storage of the unsharded buffer of a unit."""

    def __init__(self, buffer: PlannedBuffer, memory: GatheredMemory) -> None:
        self.buffer = buffer
        self._memory = memory
        self.free: Callable[[], None] = private.free_by(buffer.fsdp_param, lambda: self._release())

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The output: the buffer itself, or new memory where it has another size or element type."""
        self._memory.reserve(self)
        gathered = private.gathered_output(
            self.buffer.fsdp_param, lambda: torch.empty(*size, dtype=dtype, device=device)
        )
        if gathered.numel() != prod(size) or gathered.dtype != dtype:
            return torch.empty(*size, dtype=dtype, device=device)
        private.alloc_storage(gathered)
        return GatheredInPlace(gathered)

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


_LetGo = tuple[AliasedAllGather, torch.Event]
"""A buffer that its unit is done with, and when the device is."""


def alias_gathers(model: nn.Module, units: Sequence[tuple[nn.Module, PlannedBuffer]]) -> None:
    """Gather units of one buffer in place; gathered shards of several would lie in turns.

    Args:
        model: The sharded root, whose forward begins and ends a pass.
        units: First module and buffer of each unit.
    """
    if not units:
        return
    memory = GatheredMemory()
    for module, buffer in units:
        cast(FSDPModule, module).set_custom_all_gather(AliasedAllGather(buffer, memory))
    model.register_forward_pre_hook(memory.begin_forward)
    model.register_forward_hook(memory.end_forward, always_call=True)
