"""Makes fake tensors on the CPU behave as an eager run on an accelerator does."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runtime_client.describe.chunked_loss import chunked_loss

_LINEAR_CROSS_ENTROPY = getattr(F, "linear_cross_entropy", None)
"""Torch has it since 2.13."""
_TRANSFORMERS_MASKS = "transformers.masking_utils"
_DROPOUT_OF_HEADS = 10
"""Position of `dropout_p` in `multi_head_attention_forward`; `nn.MultiheadAttention` passes it by position."""


class AcceleratorKernels(TorchFunctionMode):
    """Dropout, attention and the chunked loss as they run on an accelerator.

    On the CPU dropout keeps a mask in the element type of its input, and attention with dropout falls back to
    kernels that keep the whole matrix of scores. On accelerators dropout is one kernel with a boolean mask, and
    fused attention draws its dropout inside. For the loss see `chunked_loss`.

    Attributes:
        attention_draws: whether attention with dropout has run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention_draws = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        kwargs = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            return _dropout(func, args, kwargs)
        if func is _LINEAR_CROSS_ENTROPY:
            return chunked_loss(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            self.attention_draws |= bool(args[_DROPOUT_OF_HEADS])
            return func(*args[:_DROPOUT_OF_HEADS], 0.0, *args[_DROPOUT_OF_HEADS + 1 :], **kwargs)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,  # noqa: ANN401 - scale, enable_gqa
    ) -> Tensor:
        self.attention_draws |= bool(dropout_p)
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)


class WideStatistics(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Layer norms of low precision save mean and deviation in float32, as on an accelerator.

    On the CPU they save them in the element type of their input. Enter it before the modes that watch.
    """

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_layer_norm.default:
            output, mean, deviation = result
            return output, mean.float(), deviation.float()
        return result


class ZeroScalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers zero or false where the construction of a model asks a fake tensor for its value.

    Initialisers that draw again until nothing is out of range then end at once.
    """

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        if func is torch.ops.aten._local_scalar_dense.default and args[0].constant is None:
            dtype: torch.dtype = args[0].dtype
            return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0
        return func(*args, **(kwargs or {}))


@contextmanager
def eager_masks() -> Iterator[None]:
    """Have transformers, where it is loaded, build masks as in an eager run.

    It takes fake tensors for a compiler's trace and then materialises causal masks that an eager run never has.
    """
    masks: Any = sys.modules.get(_TRANSFORMERS_MASKS)
    if masks is None:
        yield
        return
    original = masks.is_tracing
    masks.is_tracing = lambda tensor=None: False
    try:
        yield
    finally:
        masks.is_tracing = original


def _dropout(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, probability, training, inplace = _dropout_arguments(func, *args, **kwargs)
    if not training or probability == 0.0 or inplace:
        result: Tensor = func(*args, **kwargs)
        return result
    dropped: Tensor = torch.native_dropout(tensor, probability, True)[0]
    return dropped


def _dropout_arguments(
    func: Callable[..., Any],
    input: Tensor,  # noqa: A002 - torch's name
    p: float = 0.5,
    training: bool | None = None,
    inplace: bool = False,
    train: bool | None = None,
) -> tuple[Tensor, float, bool, bool]:
    default = func is F.dropout
    chosen = training if training is not None else train if train is not None else default
    return input, p, chosen, inplace
