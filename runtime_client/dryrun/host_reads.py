"""Answers for code that reads values of tensors, which fake tensors do not have."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode


class PlausibleReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`.item()` of a fake tensor gives true or one, what checks on data most often find; as in descriptions."""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - the dispatcher's own types, here and below
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is torch.ops.aten._local_scalar_dense.default:
            tensor = args[0]
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                return _plausible(tensor)
        return func(*args, **(kwargs or {}))


def _plausible(tensor: Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1
