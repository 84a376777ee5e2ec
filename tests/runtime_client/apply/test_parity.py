"""Models that FSDP2 refuses: it raises, often amid sharding; `apply_decisions` raises first and shards nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from planner.schema import Decisions
from runtime_client import errors
from runtime_client.apply import apply_decisions
from runtime_client.apply.modules import find_module
from runtime_client.saved_ops import selective_contexts
from tests.runtime_client.plans import decisions, unit

ROOT = unit("")


class Net(nn.Module):
    """Two halves and a head: something is sharded before what FSDP2 trips over."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8))
        self.parts = nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](self.second(self.first(x)))


def lazy(model: Net) -> None:
    model.second[0] = nn.LazyLinear(6)


def scripted(model: Net) -> None:
    model.second = torch.jit.script(model.second)


def scalar(model: Net) -> None:
    model.second.scale = nn.Parameter(torch.tensor(1.0))


def transposed(model: Net) -> None:
    model.second[0].weight = nn.Parameter(torch.randn(8, 6).t())


def two_types(model: Net) -> None:
    model.second[0].to(torch.bfloat16)


def tied(model: Net) -> None:
    model.parts[0].weight = model.first.weight


def replicated(model: Net) -> None:
    replicate(model.first)


def half_sharded(model: Net) -> None:
    fully_shard(model.first, mesh=init_device_mesh("cpu", (4,)))


def distributed(model: Net) -> None:
    mesh = init_device_mesh("cpu", (4,))
    model.first.weight = nn.Parameter(distribute_tensor(model.first.weight.detach(), mesh))


def longer(model: Net) -> None:
    model.second = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))


def unchanged(model: Net) -> None:
    pass


UNITS = (unit("first"), unit("second"), ROOT)


@dataclass(frozen=True)
class Refusal:
    """A change to the model, or decisions, and what each side says."""

    theirs: type[BaseException]
    ours: type[errors.ApplyError]
    change: Callable[[Net], None] = unchanged
    units: tuple[Any, ...] = UNITS
    fields: dict[str, Any] = field(default_factory=dict)


SELECTIVE = {"module": "second", "policy": "selective", "saved_ops": ("aten.mm.default",)}
REFUSALS = {
    "lazy parameter": Refusal(RuntimeError, errors.UninitializedParameter, lazy),
    "TorchScript": Refusal(RuntimeError, errors.ScriptedModule, scripted),
    "scalar": Refusal(ValueError, errors.ScalarParameter, scalar),
    "not contiguous": Refusal(NotImplementedError, errors.NonContiguousParameter, transposed),
    "two storage types": Refusal(AssertionError, errors.MixedStorageDTypes, two_types),
    "tied over two units": Refusal(ValueError, errors.TiedParameterSplit, tied),
    "replicated": Refusal(RuntimeError, errors.AlreadySharded, replicated),
    "sharded before": Refusal(AssertionError, errors.AlreadySharded, half_sharded),
    "DTensor": Refusal(TypeError, errors.AlreadySharded, distributed),
    "container": Refusal(ValueError, errors.UnitWithoutForward, units=(unit("first"), unit("parts"), ROOT)),
    "module twice": Refusal(AssertionError, errors.UnitListedTwice, units=(unit("first"), unit("first"), ROOT)),
    "module in two units": Refusal(
        AssertionError, errors.UnitListedTwice, units=(unit("first"), unit("second", "first"), ROOT)
    ),
    "root before": Refusal(RuntimeError, errors.RootNotLast, units=(ROOT, unit("first"))),
    "outer before inner": Refusal(RuntimeError, errors.UnitOrder, units=(unit("second"), unit("second.0"), ROOT)),
    "3 of 4 ranks": Refusal(
        ValueError, errors.UnsupportedPlan, units=(unit("first"), unit("second", reshard_after_forward=3), ROOT)
    ),
    "no such dimension": Refusal(
        AssertionError, errors.InvalidShardDim, fields={"shard_dims": ({"parameter": "second.0.bias", "dim": 1},)}
    ),
    "uneven dimension": Refusal(
        NotImplementedError,
        errors.UnevenShardDim,
        fields={"shard_dims": ({"parameter": "second.1.weight", "dim": 1},)},
    ),
    "partial resharding of another dimension": Refusal(
        IndexError,
        errors.PartialReshardOfShardDim,
        units=(unit("first", reshard_after_forward=2), unit("second"), ROOT),
        fields={"shard_dims": ({"parameter": "first.weight", "dim": 1},)},
    ),
    "units inside a selective checkpoint": Refusal(
        RuntimeError,
        errors.UnitInsideSelectiveCheckpoint,
        longer,
        units=(*(unit(f"second.{index}") for index in range(8)), unit("second"), ROOT),
        fields={"activations": (SELECTIVE,)},
    ),
    "parameters in int8": Refusal(RuntimeError, errors.UnsupportedPrecision, fields={"param_dtype": "int8"}),
    "reduction in int32": Refusal(TypeError, errors.UnsupportedPrecision, fields={"reduce_dtype": "int32"}),
    "reduction in float8": Refusal(
        NotImplementedError, errors.UnsupportedPrecision, fields={"reduce_dtype": "float8_e4m3fn"}
    ),
}


def shard_by_hand(model: Net, made: Decisions, mesh: DeviceMesh) -> None:
    """The calls that the decisions stand for, without any check, and one step."""
    for activation in made.activations:
        contexts = partial(selective_contexts, activation.saved_ops)
        setattr(
            model, activation.module, checkpoint_wrapper(getattr(model, activation.module), context_fn=contexts)
        )
    dims = {entry.parameter: entry.dim for entry in made.shard_dims}
    placements = {id(p): Shard(dims[name]) for name, p in model.named_parameters() if name in dims}
    dtypes = [getattr(torch, dtype) if dtype else None for dtype in (made.param_dtype, made.reduce_dtype)]
    for one in made.units:
        modules = [find_module(model, path, where="") for path in one.modules]
        fully_shard(
            modules[0] if len(modules) == 1 else modules,
            mesh=mesh,
            reshard_after_forward=one.reshard_after_forward,
            shard_placement_fn=(lambda p: placements.get(id(p))) if dims else None,
            mp_policy=MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1]),
        )
    model(torch.randn(2, 8)).sum().backward()


def look(model: nn.Module) -> list[object]:
    return [(name, type(module), id(module)) for name, module in model.named_modules()] + [
        (name, id(parameter), type(parameter)) for name, parameter in model.named_parameters()
    ]


@pytest.mark.parametrize("name", REFUSALS)
def test_fsdp2_refuses_and_so_do_we_before_anything_is_sharded(world: int, name: str) -> None:
    case = REFUSALS[name]
    made = decisions(case.units, shard=world, **case.fields)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    theirs, ours = Net(), Net()
    case.change(theirs)
    case.change(ours)
    with pytest.raises(case.theirs):
        shard_by_hand(theirs, made, mesh)
    before = look(ours)
    with pytest.raises(case.ours):
        apply_decisions(ours, made, mesh)
    assert look(ours) == before


def test_what_neither_refuses_runs(world: int) -> None:
    made = decisions(UNITS, shard=world, shard_dims=({"parameter": "first.weight", "dim": 1},))
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    shard_by_hand(Net(), made, mesh)
    model = Net()
    apply_decisions(model, made, mesh)
    model(torch.randn(2, 8)).sum().backward()
    assert model.first.weight.grad is not None
