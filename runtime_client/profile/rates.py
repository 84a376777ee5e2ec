"""Rates of optimizer steps, on the device and for each core of the host, and the cost of issuing a kernel."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.schema import OptimizerName
from runtime_client.errors import ClientError
from runtime_client.profile.clock import host_ns, synchronize

NUM_SAMPLES = 7
_NUM_TENSORS = 16
_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}
_NUM_LAUNCHES = 500

_CLASSES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    OptimizerName.ADAMW: (torch.optim.AdamW, {}),
    OptimizerName.ADAM: (torch.optim.Adam, {}),
    OptimizerName.SGD: (torch.optim.SGD, {"lr": 1e-3}),
    OptimizerName.SGD_MOMENTUM: (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
}
OPTIMIZERS = tuple(_CLASSES)
"""Those whose rate is one number; others do more than update elements."""


def step_times(optimizer: str, implementation: str, device: torch.device) -> tuple[int, list[int]]:
    """Elements that a step updates, and nanoseconds of some steps.

    Args:
        optimizer: one of `OPTIMIZERS`.
        implementation: foreach, fused or for_loop.
        device: where parameters and state are.

    Raises:
        ClientError: the rate of this optimizer is not one number.
    """
    if optimizer not in _CLASSES:
        raise ClientError(f"optimizer {optimizer!r} has no single rate; one of {', '.join(OPTIMIZERS)} has")
    kind, settings = _CLASSES[optimizer]
    size = _ELEMENTS[device.type]
    parameters = [nn.Parameter(torch.randn(size, device=device)) for _ in range(_NUM_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    made = kind(parameters, foreach=implementation == "foreach", fused=implementation == "fused", **settings)
    step: Callable[[], object] = made.step
    host_ns(device, step)
    return size * _NUM_TENSORS, [host_ns(device, step) for _ in range(NUM_SAMPLES)]


def num_threads() -> int:
    """Cores that an optimizer step on the host uses."""
    return torch.get_num_threads()


def launch_times(device: torch.device) -> list[int]:
    """Nanoseconds of the host for one kernel, each the mean of many; on a CPU of an operation on one number."""
    number = torch.zeros(1, device=device)
    samples = []
    for _ in range(NUM_SAMPLES + 1):
        synchronize(device)
        start_ns = time.perf_counter_ns()
        for _ in range(_NUM_LAUNCHES):
            number.add_(1)
        samples.append((time.perf_counter_ns() - start_ns) // _NUM_LAUNCHES)
    return samples[1:]
