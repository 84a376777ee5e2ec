"""Tensors made from Python values, which no backend makes directly on the recording device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from runtime_client.dryrun import recording_device

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class TensorsFromData(TorchFunctionMode):
    """`torch.tensor` and its like for the recording device: shape and type of the data, but no values.

    Enter it before the default device is set, so that it sees the device which that sets.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func not in _FROM_DATA or device is None or isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        if torch.device(device).type != recording_device.DEVICE_TYPE:
            return func(*args, **kwargs)
        host = func(*args, **(kwargs | {"device": "cpu"}))
        return torch.empty(host.shape, dtype=host.dtype, device=device, requires_grad=host.requires_grad)
