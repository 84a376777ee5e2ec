"""Clipping gradients by their global norm where parameters live on several meshes or devices."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients in place so that their norm is at most `max_norm`.

    `torch.nn.utils.clip_grad_norm_` does so on one mesh, and refuses gradients of several (torch 2.13). Here each
    mesh, and each device where units are offloaded, has a norm of its own, and the norm of all is
    `(sum of norm ** norm_type) ** (1 / norm_type)`, the largest for infinity.

    Returns:
        The norm before clipping, a plain scalar that is the same on every rank.

    Raises:
        RuntimeError: the norm is not finite, where `error_if_nonfinite` asks for that.
    """
    together: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            mesh = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
            together.setdefault((mesh, parameter.grad.device), []).append(parameter)
    norms = [_norm(members, norm_type, foreach) for members in together.values()]
    if not norms:
        return torch.tensor(0.0)
    total = _combined([norm.to(norms[0].device, torch.float32) for norm in norms], norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(f"the norm of the gradients is {total.item()}, so they cannot be clipped")
    for members, norm in zip(together.values(), norms, strict=True):
        clip_grads_with_norm_(members, max_norm, total.to(norm.device), foreach)
    return total


def _norm(members: list[nn.Parameter], norm_type: float, foreach: bool | None) -> Tensor:
    norm = get_total_norm([member.grad for member in members if member.grad is not None], norm_type, False, foreach)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _combined(norms: list[Tensor], norm_type: float) -> Tensor:
    stacked = torch.stack(norms)
    return stacked.max() if math.isinf(norm_type) else torch.linalg.vector_norm(stacked, norm_type)
