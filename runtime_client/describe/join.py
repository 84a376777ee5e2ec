"""Joins the inputs of a module as FSDP2 does where the module is a unit.

FSDP2 puts one autograd node over all inputs of a unit that require grad (`RegisterPostBackwardFunction`). Backward
collects their gradients there, runs the unit's post-backward, and only then adds them to what other modules give
the same tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.utils._pytree import tree_flatten, tree_unflatten


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, when_passed: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.when_passed = when_passed  # type: ignore[attr-defined]
        return inputs

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.when_passed()  # type: ignore[attr-defined]
        return (None, *grads)


def join_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], when_passed: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments, behind one autograd node.

    Args:
        args: of a module; tensors in tuples, lists and dictionaries are found.
        kwargs: likewise.
        when_passed: called in backward once their gradients are there, before autograd passes these on.
    """
    leaves, spec = tree_flatten((args, kwargs), is_leaf=lambda value: not isinstance(value, (tuple, list, dict)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not places or not torch.is_grad_enabled():
        return args, kwargs
    joined = _Join.apply(when_passed, *(leaves[place] for place in places))  # type: ignore[no-untyped-call]
    for place, tensor in zip(places, joined, strict=True):
        leaves[place] = tensor
    joined_args, joined_kwargs = tree_unflatten(leaves, spec)
    return joined_args, joined_kwargs
