"""A reduce-scatter whose sums do not depend on where in the buffer an element lies."""

from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

_NARROW = (torch.bfloat16, torch.float16)


def deterministic_reduction(model: nn.Module) -> None:
    """Let every unit of a sharded model sum its gradients in the order of the ranks.

    The backends' own reduce-scatter adds in an order that depends on the position in the buffer, so two layouts
    of the same parameters differ in the last bits. Call it after `apply_plan` or `fully_shard`, on every rank;
    units that are sharded evenly take it too. It sends what the backend's direct algorithm sends, but holds the
    received gradients once more while it sums them. The all-reduce of a hybrid mesh stays the backend's, whose
    order matters from three replicas on.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(RankOrderedReduceScatter())


class RankOrderedReduceScatter(ReduceScatter):
    """`all_to_all_single`, then a sum over the ranks in their order; bfloat16 and float16 are summed in float32."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: ANN401
        """Memory for an input or output."""
        return torch.empty(prod(size), dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ANN401
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce `input_tensor`, `(ranks * n,)`, to `output_tensor`, `(n,)`.

        Raises:
            NotImplementedError: the operation is neither SUM nor AVG, or an asynchronous call.
        """
        if async_op or op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise NotImplementedError(f"deterministic_reduction sums or averages, in place; asked for {op}")
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        parts = received.view(group.size(), -1)
        total = parts[0].float() if output_tensor.dtype in _NARROW else output_tensor.copy_(parts[0])
        for part in parts[1:]:
            total.add_(part)
        if op == dist.ReduceOp.AVG:
            total.div_(group.size())
        if total is not output_tensor:
            output_tensor.copy_(total)
        return cast("dist.Work | None", None)
