"""What `apply_plan` refuses, and what plain FSDP2 does with the same model and the same calls.

`REFUSALS` is the table (docs/refusals.md has it in words). Run by four ranks as `refusals.py`: each row is trained
for a few steps by hand-written FSDP2 calls and by a plan; prints what came of both as JSON lines.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from planner.schema import Decisions, ShardwrightError
from runtime_client import errors
from runtime_client.apply import apply_plan
from runtime_client.apply.modules import find_module
from runtime_client.saved_ops import selective_contexts
from tests.runtime_client.plans import body, checkpointed, decisions, unit

NUM_RANKS, NUM_STEPS = 4, 3
ROOT = unit("")


class Net(nn.Module):
    """Embedding, two halves and a head: something is sharded before what FSDP2 trips over."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8))
        self.parts = nn.ModuleList([nn.Linear(8, 8)])
        self.shift: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.parts[0](self.second(self.first(self.embed(tokens))))
        return hidden if self.shift is None else hidden + self.shift


def build() -> Net:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Net()


def unchanged(model: Net) -> None:
    pass


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


def one_module_in_two(model: Net) -> None:
    model.first = nn.Sequential(model.first, nn.Linear(8, 8))
    model.second.append(model.first[1])


def twins(model: Net) -> None:
    model.parts[0].weight = nn.Parameter(model.embed.weight.detach())


def overlapping(model: Net) -> None:
    storage = torch.randn(96)
    model.embed.weight = nn.Parameter(storage[:64].view(8, 8))
    model.parts[0].weight = nn.Parameter(storage[32:].view(8, 8))


def replicated(model: Net) -> None:
    replicate(model.first)


def half_sharded(model: Net) -> None:
    fully_shard(model.first, mesh=init_device_mesh("cpu", (NUM_RANKS,)))


def distributed(model: Net) -> None:
    """Tensor parallelism, over one rank."""
    parallelize_module(model.second[0], _mesh_with_tensor_parallelism()["tensor"], ColwiseParallel())


def _mesh_with_tensor_parallelism() -> DeviceMesh:
    return init_device_mesh("cpu", (NUM_RANKS, 1), mesh_dim_names=("shard", "tensor"))


def longer(model: Net) -> None:
    model.second = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))


def sparse(model: Net) -> None:
    model.embed.sparse = True


def masked(model: Net) -> None:
    """A hook that keeps a weight as it is."""
    model.first.weight.register_hook(torch.zeros_like)


def stepped_in_backward(model: Net) -> None:
    """An optimizer without `step`, as torch's tutorial has it."""

    def step(parameter: Tensor) -> None:
        parameter.data -= 0.5 * cast(Tensor, parameter.grad)
        parameter.grad = None

    model.first.weight.register_post_accumulate_grad_hook(step)


def trained_buffer(model: Net) -> None:
    del model.shift
    model.register_buffer("shift", torch.zeros(8, requires_grad=True))


def hooked(model: Net) -> None:
    """Hooks of modules, which may stay."""
    model.first.register_forward_pre_hook(lambda _module, args: (2 * args[0],))
    model.first.register_forward_hook(lambda module, _args, output: output + module.weight.mean())
    model.second[0].register_full_backward_hook(lambda _module, into, _outof: (into[0] / 2,))


def normed(model: Net) -> None:
    nn.utils.parametrizations.weight_norm(model.first)
    nn.utils.weight_norm(model.second[0])


def compiled(model: Net) -> None:
    model.first = torch.compile(model.first, backend="eager")
    model.second[0].compile(backend="eager")


def wrapped(model: Net) -> None:
    model.first = checkpoint_wrapper(model.first)


UNITS = (unit("first"), unit("second"), ROOT)
Arm = Callable[[Net, Decisions], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A change to the model, or decisions, and what each side says."""

    words: str = ""
    """Of torch, in its error."""
    theirs: type[BaseException] | str
    """What plain FSDP2 raises, or what it gets wrong without a word: a key of what `train` returns."""
    ours: type[ShardwrightError] | None
    change: Callable[[Net], None] = unchanged
    units: tuple[Any, ...] = UNITS
    fields: dict[str, Any] = field(default_factory=dict)
    mesh: Callable[[], DeviceMesh] = lambda: init_device_mesh("cpu", (NUM_RANKS,), mesh_dim_names=("shard",))
    is_early: bool = False
    """The optimizer is built before sharding."""


def fine(change: Callable[[Net], None], **fields: Any) -> Refusal:
    """What neither refuses: it trains as the unsharded model does."""
    return Refusal(theirs="nothing", ours=None, change=change, **fields)


ONCE = "can only be applied to a module once"
OVERLAPPING = "Cannot concatenate overlapping meshes"
SELECTIVE = {"module": "second", "policy": "selective", "saved_ops": ("aten.mm.default",)}
REFUSALS = {
    "tied over two units": Refusal(
        words="is shared with a parameter already managed by another FSDP group",
        theirs=ValueError,
        ours=errors.TiedParameterSplit,
        change=tied,
    ),
    "module shared by two units": Refusal(
        words=OVERLAPPING, theirs=RuntimeError, ours=errors.TiedParameterSplit, change=one_module_in_two
    ),
    "two parameters, one storage": Refusal(theirs="differs", ours=errors.TiedParameterSplit, change=twins),
    "storages that overlap": Refusal(theirs="differs", ours=errors.TiedParameterSplit, change=overlapping),
    "two storage types": Refusal(
        words="FSDP expects uniform original parameter dtype",
        theirs=AssertionError,
        ours=errors.MixedStorageDTypes,
        change=two_types,
    ),
    "scalar": Refusal(
        words="doesn't support scalar parameters",
        theirs=ValueError,
        ours=errors.ScalarParameter,
        change=scalar,
    ),
    "not contiguous": Refusal(
        words="does not support non-contiguous parameters",
        theirs=NotImplementedError,
        ours=errors.NonContiguousParameter,
        change=transposed,
    ),
    "lazy parameter": Refusal(
        words="uninitialized parameter", theirs=RuntimeError, ours=errors.UninitializedParameter, change=lazy
    ),
    "TorchScript": Refusal(
        words="not supported on ScriptModules", theirs=RuntimeError, ours=errors.ScriptedModule, change=scripted
    ),
    "sparse gradients": Refusal(
        words="from the 'SparseCPU' backend",
        theirs=NotImplementedError,
        ours=errors.SparseGradient,
        change=sparse,
    ),
    "hook on a parameter": Refusal(theirs="differs", ours=errors.ParameterHook, change=masked),
    "optimizer in hooks": Refusal(theirs="differs", ours=errors.ParameterHook, change=stepped_in_backward),
    "buffer that is trained": Refusal(theirs="drifts", ours=errors.TrainableBuffer, change=trained_buffer),
    "optimizer built before": Refusal(theirs="unchanged", ours=errors.OptimizerBuiltTooEarly, is_early=True),
    "replicated": Refusal(
        words="doesn't have any parameter that requires a gradient",
        theirs=RuntimeError,
        ours=errors.AlreadySharded,
        change=replicated,
    ),
    "sharded before": Refusal(words=ONCE, theirs=AssertionError, ours=errors.AlreadySharded, change=half_sharded),
    "DTensor, resharded to fewer ranks": Refusal(
        words="not supported for DTensor parameters",
        theirs=NotImplementedError,
        ours=errors.AlreadySharded,
        change=distributed,
        units=(unit("first"), unit("second", reshard_after_forward=2), ROOT),
        mesh=lambda: _mesh_with_tensor_parallelism()["shard"],
    ),
    "mesh without names": Refusal(
        words="2D mesh for HSDP with mesh_dim_names",
        theirs=AssertionError,
        ours=errors.MeshMismatch,
        fields={"shard": 2, "replicate": 2},
        mesh=lambda: init_device_mesh("cpu", (2, 2)),
    ),
    "no such module": Refusal(
        words="no attribute", theirs=AttributeError, ours=errors.UnknownModule, units=(unit("third"), ROOT)
    ),
    "container": Refusal(
        words="does not support containers that do not implement forward",
        theirs=ValueError,
        ours=errors.UnitWithoutForward,
        units=(unit("first"), unit("parts"), ROOT),
    ),
    "module twice": Refusal(
        words=ONCE, theirs=AssertionError, ours=errors.UnitListedTwice, units=(unit("first"), unit("first"), ROOT)
    ),
    "module in two units": Refusal(
        words=ONCE,
        theirs=AssertionError,
        ours=errors.UnitListedTwice,
        units=(unit("first"), unit("second", "first"), ROOT),
    ),
    "root before": Refusal(
        words=OVERLAPPING, theirs=RuntimeError, ours=errors.RootNotLast, units=(ROOT, unit("first"))
    ),
    "no root": Refusal(theirs="drifts", ours=errors.RootNotLast, units=UNITS[:2]),
    "outer before inner": Refusal(
        words=OVERLAPPING,
        theirs=RuntimeError,
        ours=errors.UnitOrder,
        units=(unit("second"), unit("second.0"), ROOT),
    ),
    "prefetch of what already ran": Refusal(
        theirs="holds more",
        ours=errors.PrefetchOrder,
        units=(
            unit("first", forward_prefetch=("second",)),
            unit("second", forward_prefetch=("first",)),
            ROOT,
        ),
    ),
    "prefetch of what is no unit": Refusal(
        words="Expects FSDPModule",
        theirs=ValueError,
        ours=errors.PrefetchOrder,
        units=(unit("first", forward_prefetch=("second",)), ROOT),
    ),
    "3 of 4 ranks": Refusal(
        words="should be a factor of 4, not 3",
        theirs=ValueError,
        ours=errors.UnsupportedPlan,
        units=(unit("first"), unit("second", reshard_after_forward=3), ROOT),
    ),
    "no such dimension": Refusal(
        words="Shard dim 1 is invalid for 1D tensor",
        theirs=AssertionError,
        ours=errors.InvalidShardDim,
        fields={"shard_dims": ({"parameter": "second.0.bias", "dim": 1},)},
    ),
    "uneven dimension": Refusal(
        words="does not support uneven sharding on dim 1",
        theirs=NotImplementedError,
        ours=errors.UnevenShardDim,
        fields={"shard_dims": ({"parameter": "second.1.weight", "dim": 1},)},
    ),
    "partial resharding of another dimension": Refusal(
        theirs=IndexError,
        ours=errors.PartialReshardOfShardDim,
        units=(unit("first", reshard_after_forward=2), unit("second"), ROOT),
        fields={"shard_dims": ({"parameter": "first.weight", "dim": 1},)},
    ),
    "units inside a selective checkpoint": Refusal(
        theirs=RuntimeError,
        ours=errors.UnitInsideSelectiveCheckpoint,
        change=longer,
        units=(*(unit(f"second.{index}") for index in range(8)), unit("second"), ROOT),
        fields={"activations": (SELECTIVE,)},
    ),
    "parameters in int8": Refusal(
        theirs=RuntimeError, ours=errors.UnsupportedPrecision, fields={"param_dtype": "int8"}
    ),
    "reduction in int32": Refusal(
        theirs=TypeError, ours=errors.UnsupportedPrecision, fields={"reduce_dtype": "int32"}
    ),
    "reduction in float8": Refusal(
        theirs=NotImplementedError, ours=errors.UnsupportedPrecision, fields={"reduce_dtype": "float8_e4m3fn"}
    ),
    "as it should be": fine(unchanged),
    "hooks of modules": fine(hooked),
    "weight norm": fine(normed),
    "compiled parts": fine(compiled),
    "checkpointed part": fine(wrapped, fields={"activations": checkpointed("first")}),
    "another dimension": fine(unchanged, fields={"shard_dims": ({"parameter": "first.weight", "dim": 1},)}),
}


def decided(case: Refusal) -> Decisions:
    """Decisions of a row."""
    return decisions(case.units, **{"shard": NUM_RANKS, **case.fields})


def shard_by_hand(model: Net, made: Decisions, mesh: DeviceMesh) -> None:
    """The calls that the decisions stand for, without any check."""
    for activation in made.activations:
        inner = getattr(model, activation.module)
        if not isinstance(inner, CheckpointWrapper):
            contexts = partial(selective_contexts, activation.saved_ops)
            setattr(model, activation.module, checkpoint_wrapper(inner, context_fn=contexts))
    dims = {entry.parameter: entry.dim for entry in made.shard_dims}
    placements = {id(p): Shard(dims[name]) for name, p in model.named_parameters() if name in dims}
    dtypes = [getattr(torch, dtype) if dtype else None for dtype in (made.param_dtype, made.reduce_dtype)]
    for one in made.units:
        modules = [model.get_submodule(path) for path in one.modules]
        fully_shard(
            modules[0] if len(modules) == 1 else modules,
            mesh=mesh,
            reshard_after_forward=one.reshard_after_forward,
            shard_placement_fn=(lambda p: placements.get(id(p))) if dims else None,
            mp_policy=MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1]),
        )
    for one in made.units:
        if one.forward_prefetch:
            head = cast(FSDPModule, model.get_submodule(one.modules[0]))
            head.set_modules_to_forward_prefetch([find_module(model, p, where="") for p in one.forward_prefetch])


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Whatever requires a gradient."""
    both = (*model.named_parameters(), *model.named_buffers())
    return {name: one for name, one in both if one.requires_grad}


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def batch(step: int, rank: int) -> Tensor:
    """Tokens of one rank in one step."""
    return torch.randint(0, 8, (2, 3), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    return (model(batch(step, rank)) - 1).float().square().mean()


def num_gathered(model: nn.Module) -> int:
    """Units that are whole on this rank, or in a buffer of a gather."""
    groups = {m._get_fsdp_state()._fsdp_param_group for m in model.modules() if isinstance(m, FSDPModule)}
    return sum(group.is_unsharded or group._all_gather_result is not None for group in groups - {None})


def train(model: Net, shard: Callable[[], object], case: Refusal) -> dict[str, bool]:
    """A few steps of SGD; what then differs from the unsharded model that got the batches of all ranks."""
    reference = build()
    case.change(reference)
    early = torch.optim.SGD(tensors(model).values(), lr=0.1) if case.is_early else None
    shard()
    optimizer = early or torch.optim.SGD(tensors(model).values(), lr=0.1)
    other = torch.optim.SGD(tensors(reference).values(), lr=0.1)
    before = {name: whole(one) for name, one in tensors(model).items()}
    gathered = 0
    for step in range(NUM_STEPS):
        loss = loss_of(model, step, dist.get_rank())
        gathered = max(gathered, num_gathered(model))
        loss.backward()
        sum(loss_of(reference, step, rank) / NUM_RANKS for rank in range(NUM_RANKS)).backward()
        for one in (optimizer, other):
            one.step()
            one.zero_grad()
    after = {name: whole(one) for name, one in tensors(model).items()}
    references = {name: one.detach() for name, one in tensors(reference).items()}
    pairs = [(after[name], expected) for name, expected in zip(after, references.values(), strict=True)]
    return {
        "unchanged": all(torch.equal(after[name], one) for name, one in before.items()),
        "differs": not all(torch.allclose(mine, expected, atol=1e-5) for mine, expected in pairs),
        "drifts": any(_drifts(one) for one in after.values()),
        "holds more": gathered > 1,
    }


def _drifts(tensor: Tensor) -> bool:
    """Whether ranks have it differently."""
    copies = [torch.empty_like(tensor) for _ in range(NUM_RANKS)]
    dist.all_gather(copies, tensor.contiguous())
    return not all(torch.equal(copy, copies[0]) for copy in copies)


def look(model: nn.Module) -> list[object]:
    """What must be as it was after a refusal."""
    return [(name, type(module), id(module)) for name, module in model.named_modules()] + [
        (name, id(parameter), type(parameter)) for name, parameter in model.named_parameters()
    ]


def plain(case: Refusal) -> dict[str, Any]:
    """What came of hand-written calls."""
    model = build()
    case.change(model)
    try:
        found = train(model, lambda: shard_by_hand(model, decided(case), case.mesh()), case)
    except Exception as error:
        return {"raised": [one.__name__ for one in type(error).__mro__], "message": str(error)}
    return {name: is_so for name, is_so in found.items() if is_so}


def planned(case: Refusal) -> dict[str, Any]:
    """What came of the plan."""
    model = build()
    case.change(model)
    before, mesh = look(model), case.mesh()
    try:
        plan = body(decided(case))
        found = train(model, lambda: apply_plan(model, plan, mesh=mesh, require_fingerprint=False), case)
    except ShardwrightError as error:
        is_untouched = case.is_early or look(model) == before
        return {"raised": type(error).__name__, "message": str(error), "untouched": is_untouched}
    return {name: is_so for name, is_so in found.items() if is_so}


def main() -> None:
    dist.init_process_group("gloo")
    for name, case in REFUSALS.items():
        print(json.dumps({"name": name, "plain": plain(case), "planned": planned(case)}), flush=True)


if __name__ == "__main__":
    main()
