"""Gives fake modules and arguments memory on a device, filled with numbers that cost what real ones do.

[Note: which numbers] Times of kernels depend on shapes, with two exceptions. Token ids are drawn from the whole
vocabulary, as the gradient of an embedding takes long where all tokens are the same. Weights are random, so that
routers send tokens to all experts about alike. Buffers are drawn from [0, 1), which variances can be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.utils import _apply_to_tensors

from runtime_client.profile.fake_run import is_fake

_WEIGHT_SCALE = 0.02


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """The module with memory on the device; without it again afterwards."""
    before = [(one, dict(one._parameters), dict(one._buffers), dict(vars(one))) for one in module.modules()]
    try:
        for one, parameters, buffers, attributes in before:
            for name, parameter in parameters.items():
                if parameter is not None:
                    value = _random(parameter, device).mul_(_WEIGHT_SCALE)
                    one._parameters[name] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            for name, buffer in buffers.items():
                one._buffers[name] = None if buffer is None else _buffer(buffer, device)
            for name, value in attributes.items():
                if is_fake(value):
                    setattr(one, name, _buffer(value, device))
        yield module
    finally:
        for one, parameters, buffers, attributes in before:
            one._parameters.update(parameters)
            one._buffers.update(buffers)
            vars(one).update({name: value for name, value in attributes.items() if is_fake(value)})


def real_arguments(arguments: Any, device: torch.device, *, num_rows: int | None = None) -> Any:  # noqa: ANN401
    """Arguments with memory on the device; a tensor that occurs twice is one again.

    Args:
        arguments: whatever a module is given.
        device: where to.
        num_rows: integers are drawn below it, None makes zeros.
    """
    made: dict[int, Tensor] = {}

    def real(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = _argument(tensor, device, num_rows)
        return made[id(tensor)]

    return _apply_to_tensors(real, arguments)


def num_rows(module: nn.Module) -> int | None:
    """Rows of the smallest table that the module looks tokens up in; None without one."""
    tables = [one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)]
    return min(tables, default=None)


def _argument(tensor: Tensor, device: torch.device, rows: int | None) -> Tensor:
    if tensor.is_floating_point():
        return _random(tensor, device).requires_grad_(tensor.requires_grad)
    if tensor.dtype is torch.bool:
        return torch.ones(tensor.shape, dtype=torch.bool, device=device)
    return torch.randint(0, rows or 1, tensor.shape, dtype=tensor.dtype, device=device)


def _random(tensor: Tensor, device: torch.device) -> Tensor:
    """Of the same shape and strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.normal_() if made.is_floating_point() else made.zero_()


def _buffer(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.uniform_() if made.is_floating_point() else made.zero_()
