"""AdamW whose moments are kept in 8 bits, in blocks that the layout does not cut."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from runtime_client.optimizers.errors import CutParameter, name_of
from runtime_client.ragged.local_pieces import boundaries
from runtime_client.ragged.tensor import RaggedTensor, Spread

BLOCK = 256
"""Elements that share a scale, counted from the start of the flattened parameter."""
SMALLEST = 4096
"""Parameters with fewer elements keep moments of 32 bits, however they are sharded."""
_MOMENTS = (("exp_avg", True), ("exp_avg_sq", False))


class Adam8bit(Optimizer):
    """AdamW (decoupled weight decay) with blockwise 8-bit moments (Dettmers et al., 2022, arXiv 2110.02861).

    Each block of 256 elements has one float32 scale, its largest magnitude, and a code of 8 bits for each element
    that stands for one of 256 values of the dynamic map. Whether a parameter is kept so depends on the size of the
    whole, so a sharded run has the states of an unsharded one, bit by bit. Works on local parts, without
    communication, on ragged, even and unsharded parameters.

    Raises:
        CutParameter: a rank boundary cuts a block; names are known when built from `named_parameters()`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of torch, with the check of this class."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for place, parameter in enumerate(group["params"]):
            if parameter.numel() >= SMALLEST and any(bound % BLOCK for bound in boundaries(parameter)):
                raise CutParameter(
                    "Adam8bit", name_of(group, place), parameter, f"its moments have blocks of {BLOCK} elements"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update(_first_moments(parameter))
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        gradient = _flat(parameter.grad).float()
        moments = {name: _read(state, name, signed=signed) for name, signed in _MOMENTS}
        first, second = moments["exp_avg"], moments["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        local = _flat(parameter)
        updated = local.float() if local.dtype is not torch.float32 else local
        updated.mul_(1 - group["lr"] * group["weight_decay"])
        updated.addcdiv_(first, scale, value=-group["lr"] / (1 - beta1**step))
        if updated is not local:
            local.copy_(updated)
        for name, signed in _MOMENTS:
            _write(state, name, moments[name], signed=signed)


@cache
def dynamic_map(*, signed: bool, device: torch.device) -> Tensor:
    """The 256 values in [-1, 1], or [0, 1], that codes stand for, ascending.

    The magnitudes of decade 10^-(6 - e), e = 0..6, are the midpoints of 2^e equal intervals of [0.1, 1] (twice as
    many without a sign), scaled; besides there are 0 and 1.
    """
    values = [0.0, 1.0]
    for exponent in range(7):
        count = 2**exponent if signed else 2 ** (exponent + 1)
        edges = torch.linspace(0.1, 1.0, count + 1, dtype=torch.float64)
        scaled = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)).tolist()
        values += scaled
        values += [-value for value in scaled] if signed else []
    return torch.tensor(sorted(values), dtype=torch.float32, device=device)


def quantize(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes `(n,)` and scales `(ceil(n / 256),)` of a flat float32 tensor `(n,)`; the nearest value wins."""
    padded = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    scales = padded.abs().amax(dim=1) if padded.numel() else padded.new_empty(0)
    known = dynamic_map(signed=signed, device=values.device)
    normalized = padded / torch.where(scales > 0, scales, 1.0).unsqueeze(1)
    codes = torch.bucketize(normalized, (known[:-1] + known[1:]) / 2)
    return codes.to(torch.uint8).view(-1)[: values.numel()], scales


def dequantize(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """The float32 values `(n,)` of codes `(n,)`."""
    known = dynamic_map(signed=signed, device=codes.device)
    return known[codes.int()] * scales.repeat_interleave(BLOCK)[: codes.numel()]


def _first_moments(parameter: Tensor) -> dict[str, Tensor]:
    if parameter.numel() < SMALLEST:
        return {name: torch.zeros_like(parameter, dtype=torch.float32) for name, _ in _MOMENTS}
    found = {}
    zeros = torch.zeros_like(_flat(parameter), dtype=torch.float32)
    for name, signed in _MOMENTS:
        codes, scales = quantize(zeros, signed=signed)
        found[f"{name}_codes"] = torch.zeros_like(parameter, dtype=torch.uint8)
        _flat(found[f"{name}_codes"]).copy_(codes)
        found[f"{name}_scales"] = _scales_like(parameter, scales)
    return found


def _scales_like(parameter: Tensor, scales: Tensor) -> Tensor:
    """Scales as a tensor over the blocks of the whole parameter, spread as the parameter is."""
    if not isinstance(parameter, DTensor):
        return scales
    bounds = [0, *boundaries(parameter), parameter.numel()]
    blocks = [-(-(end - start) // BLOCK) for start, end in pairwise(bounds)]
    return RaggedTensor(scales, Spread(parameter.device_mesh, tuple(blocks)), (-(-parameter.numel() // BLOCK),))


def _read(state: dict[str, Tensor], name: str, *, signed: bool) -> Tensor:
    if name in state:
        return _flat(state[name])
    return dequantize(_flat(state[f"{name}_codes"]), _flat(state[f"{name}_scales"]), signed=signed)


def _write(state: dict[str, Tensor], name: str, moment: Tensor, *, signed: bool) -> None:
    if name in state:
        return
    codes, scales = quantize(moment, signed=signed)
    _flat(state[f"{name}_codes"]).copy_(codes)
    _flat(state[f"{name}_scales"]).copy_(scales)


def _flat(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).view(-1)
