"""A small model whose optimizer state is anywhere, trained in this process."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime_client.offload.nvme_store import NvmeStore
from runtime_client.offload.optimizer import OffloadedOptimizer
from runtime_client.offload.unit_step import UnitStep

WIDTHS = (33, 65, 17, 5)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(WIDTHS)))


def groups(model: nn.Sequential) -> list[dict[str, Any]]:
    first, *others = model
    return [{"params": first.parameters()}, {"params": [p for m in others for p in m.parameters()], "lr": 1e-2}]


def units(model: nn.Sequential, *, has_all: bool = False) -> dict[str, list[nn.Parameter]]:
    """One unit with two groups in it, one with one; a parameter of the second layer may be in none."""
    middle = list(model[1].parameters())[: None if has_all else 1]
    return {"first": [*model[0].parameters(), *middle], "last": list(model[2].parameters())}


def offloaded(
    model: nn.Sequential, kind: type[torch.optim.Adam] = torch.optim.AdamW, *, has_all: bool = False, **options: Any
) -> OffloadedOptimizer:
    chosen = units(model, has_all=has_all)
    return OffloadedOptimizer(kind, groups(model), chosen, device_type="cpu", lr=1e-3, **options)


def on_disk(model: nn.Sequential, folder: Path, **options: Any) -> OffloadedOptimizer:
    make: Callable[[Sequence[UnitStep]], NvmeStore] = partial(NvmeStore, folder=folder, **options)  # type: ignore[assignment]
    return offloaded(model, has_all=True, make_store=make)


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(7, WIDTHS[0], generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def found(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and state, cloned."""
    state = optimizer.state_dict()["state"]
    moments = {f"{place} {name}": value for place, own in state.items() for name, value in own.items()}
    return {name: value.detach().clone() for name, value in {**dict(model.named_parameters()), **moments}.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
