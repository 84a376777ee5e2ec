"""`torch.nn.functional.linear_cross_entropy` in chunks, with the memory that it takes on an accelerator.

Torch's operation computes gradients in forward, chunk by chunk. Fake tensors show what it returns, but not what it
works in, and its own defaults depend on the device. Here it gets the defaults of CUDA, and beside it lives a tensor
as large as its workspace.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runtime_client.describe.errors import HiddenWorkspace

_HALF = (torch.bfloat16, torch.float16)
_LIKE_IN_MEMORY = ("balanced", "compact")


def chunked_loss(
    function: Callable[..., Tensor],
    input: Tensor,  # noqa: A002 - torch's name
    linear_weight: Tensor,
    target: Tensor,
    *,
    options: Any = None,  # noqa: ANN401 - `torch.nn.LinearCrossEntropyOptions`, which older versions do not have
    **others: Any,  # noqa: ANN401 - what else the function takes
) -> Tensor:
    """Call `function`, which is `linear_cross_entropy`.

    Raises:
        HiddenWorkspace: in chunks without a reduction it works in backward, where its workspace cannot be placed.
    """
    if options is None or not _runs_in_chunks(linear_weight, target, **others):
        return function(input, linear_weight, target, options=options, **others)
    if others.get("reduction", "mean") == "none":
        raise HiddenWorkspace(
            'linear_cross_entropy in chunks with reduction="none" computes gradients in backward, in memory that '
            'no trace shows: use reduction "sum" or "mean", or options=None'
        )
    options = _as_on_cuda(options, input, linear_weight)
    size_bytes = workspace_bytes(
        options,
        num_rows=input.numel() // input.shape[-1],
        num_features=input.shape[-1],
        num_classes=linear_weight.shape[0],
        dtype=input.dtype,
        input_grad=input.requires_grad,
        weight_grad=linear_weight.requires_grad,
    )
    workspace = torch.empty(size_bytes, dtype=torch.uint8, device=input.device)
    loss = function(input, linear_weight, target, options=options, **others)
    del workspace
    return loss


def workspace_bytes(
    options: Any,  # noqa: ANN401 - see above
    *,
    num_rows: int,
    num_features: int,
    num_classes: int,
    dtype: torch.dtype,
    input_grad: bool,
    weight_grad: bool,
) -> int:
    """Most bytes alive inside the operation on CUDA beyond its results.

    From `_ChunkContext` of torch 2.13; without bias and class weights, which are small.

    Args:
        options: with everything decided (`_adjust`).
        num_rows: tokens.
        num_features: columns of the input.
        num_classes: rows of the weight.
        dtype: element type of the input.
        input_grad: whether the input's gradient is computed.
        weight_grad: whether the weight's gradient is.
    """
    accumulator: torch.dtype = options.acc_dtype
    is_mixed, is_lean = accumulator != dtype, options.acc_policy in _LIKE_IN_MEMORY
    grad_input = accumulator if is_mixed and not is_lean else dtype
    logits = dtype if dtype is torch.float16 and is_lean else accumulator
    keeps_weight_grad = weight_grad and options.acc_policy != "compact"
    casts_weight = is_mixed and input_grad and grad_input == logits != dtype
    casts_for_input = input_grad and logits != grad_input
    casts_for_weight = weight_grad and not keeps_weight_grad and logits != dtype
    is_too_wide = num_classes * logits.itemsize < num_features * dtype.itemsize
    has_rest = weight_grad and is_too_wide and not (is_mixed and keeps_weight_grad)

    chunk = min(int(options.batch_chunk_size), num_rows)
    chunk_logits, chunk_input = chunk * num_classes, chunk * num_features
    always = chunk_logits * logits.itemsize + num_rows * (1 + torch.int64.itemsize + accumulator.itemsize)
    always += num_classes * num_features * logits.itemsize if casts_weight else 0
    always += num_classes * num_features * accumulator.itemsize if keeps_weight_grad else 0
    always += chunk_input * accumulator.itemsize if is_mixed and weight_grad else 0

    cast = chunk_logits * dtype.itemsize if casts_for_input or casts_for_weight else 0
    rest = chunk_input * dtype.itemsize if has_rest else 0
    rows = chunk_input * (logits if casts_weight else dtype).itemsize if input_grad else 0
    result = num_rows * num_features * accumulator.itemsize if input_grad and grad_input != dtype else 0
    old_cast, old_rest = (cast if casts_for_input else 0, rest) if chunk < num_rows else (0, 0)
    in_loop = max(old_cast + cast + old_rest, cast + old_rest + rows, cast + old_rest + rest)
    in_loop += result - num_rows * num_features * dtype.itemsize if result else 0
    return always + max(in_loop, cast + rest + result)


def _runs_in_chunks(linear_weight: Tensor, target: Tensor, label_smoothing: float = 0.0, **_: object) -> bool:
    return linear_weight.dim() == 2 and label_smoothing == 0.0 and target.dtype == torch.int64


def _as_on_cuda(options: Any, input: Tensor, linear_weight: Tensor) -> Any:  # noqa: A002, ANN401
    if options.acc_dtype is None and options.acc_policy == "auto" and input.dtype in _HALF:
        options = dataclasses.replace(options, acc_dtype=torch.float32)
    return options._adjust(
        num_batches=input.numel() // input.shape[-1],
        in_features=input.shape[-1],
        num_classes=linear_weight.shape[0],
        dtype=input.dtype,
        device=torch.device("cuda"),
    )
