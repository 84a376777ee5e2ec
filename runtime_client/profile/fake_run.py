"""What each call of a model is given, found out by one forward on fake tensors."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.schema import LOSS_PATH, DType, ModelDescription
from runtime_client.describe.example import TrainingExample
from runtime_client.describe.kernels import ZeroScalars, eager_masks
from runtime_client.describe.prepare import cast_inputs, cast_output, prepare_parameters, unwrap_checkpoints

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class FakeModel:
    """A model without memory, whose forward shows what its modules are given.

    Args:
        build: makes the model and its inputs.
        model: its description, which says in which element types it runs.
    """

    def __init__(self, build: Callable[[], TrainingExample], model: ModelDescription) -> None:
        self._mode = FakeTensorMode()
        self._param_dtype: DType | None = model.param_dtype
        self._output_dtype = model.output_dtype
        with self._mode:
            with ZeroScalars():  # type: ignore[no-untyped-call]
                self.example = build()
            self.example.model.train()
            unwrap_checkpoints(self.example.model)
            prepare_parameters(self.example.model, self._param_dtype)

    def module(self, path: str) -> nn.Module:
        """A module by its path."""
        return self.example.model.get_submodule(path)

    def arguments(self, paths: Collection[str], micro_batch: int, sequence: int) -> dict[str, Arguments]:
        """Fake arguments of the first run of each module, and of the loss, by path.

        Those of the loss are the model's output and the arguments of the forward.
        """
        seen: dict[str, Arguments] = {}
        hooks = [
            self.module(path).register_forward_pre_hook(partial(_see, seen, path), with_kwargs=True)
            for path in paths
            if path != LOSS_PATH
        ]
        try:
            with self._mode, eager_masks(), ZeroScalars():  # type: ignore[no-untyped-call]
                inputs = self.example.inputs(micro_batch, sequence)
                args, kwargs = cast_inputs(inputs, self._param_dtype)
                output = self.example.model(*args, **kwargs)
                if self._output_dtype is not None:
                    output = cast_output(output, self._output_dtype)
        finally:
            for hook in hooks:
                hook.remove()
        seen[LOSS_PATH] = ((output, *inputs), {})
        return seen


def _see(
    seen: dict[str, Arguments], path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    seen.setdefault(path, (args, kwargs))


def is_fake(value: object) -> bool:
    """Whether a value is a tensor without memory."""
    return isinstance(value, torch.Tensor) and hasattr(value, "fake_mode")
