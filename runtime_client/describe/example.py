"""TrainingExample: a module, inputs of a given size and its loss; all that describing it takes."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from runtime_client.describe.errors import NoTarget

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one forward."""


def cross_entropy_loss(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:  # noqa: ANN401
    """Cross entropy in float32 over the last dimension of a tensor or of `output.logits`.

    The labels are an integer input of the shape of the logits without their last dimension (token ids), or
    zeros where there is none.

    Args:
        output: what the module returned: logits `(..., num_classes)`, an object that has them as `logits`, or a
            tuple that starts with them.
        args: positional inputs of the forward.
        kwargs: keyword inputs of the forward.
    """
    logits = _logits(output)
    labels = _labels(logits, (*args, *kwargs.values()))
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """What to trace: `loss(model(*args, **kwargs), args, kwargs)` and its backward.

    Attributes:
        model: the module as it is handed to `fully_shard`.
        inputs: makes the arguments of one forward from (micro-batch, sequence length).
        loss: makes the scalar loss from the output and the arguments.
    """

    model: nn.Module
    inputs: Callable[[int, int], Inputs]
    loss: Callable[[Any, tuple[Any, ...], dict[str, Any]], Tensor] = cross_entropy_loss


def token_inputs(micro_batch: int, sequence: int) -> Inputs:
    """Token ids `(micro_batch, sequence)` as the only positional argument."""
    return (torch.zeros(micro_batch, sequence, dtype=torch.long),), {}


def input_tensors(inputs: Inputs) -> list[Tensor]:
    """Tensors among the arguments of a forward, at any depth."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


def load_target(target: str) -> Callable[[], TrainingExample]:
    """Find the builder that `pkg.module:build` names.

    Raises:
        NoTarget: the text has another form, the module cannot be imported or has no such callable.
    """
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise NoTarget(f"{target!r} is not of the form pkg.module:build")
    try:
        build = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise NoTarget(f"{target!r} cannot be loaded: {error}; is its folder on PYTHONPATH?") from error
    if not callable(build):
        raise NoTarget(f"{target!r} is a {type(build).__name__}; it must be a callable that makes an example")
    builder: Callable[[], TrainingExample] = build
    return builder


def _logits(output: Any) -> Tensor:  # noqa: ANN401 - whatever a module returns
    candidate = getattr(output, "logits", output)
    if isinstance(candidate, (tuple, list)):
        candidate = candidate[0]
    if not isinstance(candidate, Tensor):
        raise NoTarget(f"the module returned {type(output).__name__}, not logits: give the example its own loss")
    return candidate


def _labels(logits: Tensor, inputs: tuple[Any, ...]) -> Tensor:
    for value in inputs:
        if isinstance(value, Tensor) and value.dtype == torch.long and value.shape == logits.shape[:-1]:
            return value
    return torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
