"""Fused attention on the recording device, which has no kernels to choose from."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from runtime_client.dryrun import recording_device


class FusedAttention(TorchFunctionMode):
    """`scaled_dot_product_attention` on the recording device runs the kernel that the CPU would choose.

    Left alone torch takes the composite one for a device that it does not know, which keeps the whole matrix of
    scores for backward as no accelerator does. The CPU's choice is what descriptions are traced with.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        if func is F.scaled_dot_product_attention and args[0].device.type == recording_device.DEVICE_TYPE:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    choice = _choice(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if dropout_p or choice != SDPBackend.FLASH_ATTENTION:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        hidden = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, hidden)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mixed: Tensor = kernel(query, key, value, is_causal=is_causal, attn_mask=attn_mask, scale=scale)[0]
    return mixed


def _choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    **options: Any,  # noqa: ANN401 - is_causal, scale, enable_gqa
) -> SDPBackend:
    with _disable_current_modes():
        mask = None if attn_mask is None else _twin_of(attn_mask)
        number = torch._fused_sdp_choice(_twin_of(query), _twin_of(key), _twin_of(value), mask, **options)
    return SDPBackend(number)


def _twin_of(tensor: Tensor) -> Tensor:
    """A real tensor on the host of the same shape in which all rows share their memory; only shapes matter."""
    strides = [0] * (tensor.ndim - 1) + [tensor.stride(-1)]
    row = torch.empty((tensor.shape[-1] - 1) * strides[-1] + 1, dtype=tensor.dtype, device="cpu")
    return row.as_strided(tensor.shape, strides).requires_grad_(tensor.requires_grad)
