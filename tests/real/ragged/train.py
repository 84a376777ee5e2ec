"""One rank: train each case with even and with ragged shards, and print how the two differ as JSON lines.

With `case=file` the arms are the decisions in the file without and with gathers in place.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from planner.schema import Decisions
from runtime_client.apply import apply_decisions
from runtime_client.fingerprint import iter_parameters
from runtime_client.ragged import deterministic_reduction, private
from runtime_client.ragged.gather import AliasedAllGather
from runtime_client.ragged.tensor import RaggedTensor
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import checkpointed, decisions, unit
from tests.runtime_client.ragged.layouts import rows, with_layouts

NUM_STEPS = 5
LAYERS = ("layers.0", "layers.1")
ROOT = unit("")
BLOCKS = (*map(unit, LAYERS), ROOT)
BFLOAT16 = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a case shards and trains; both arms do it alike but for the layouts."""

    units: tuple = BLOCKS
    replicate: int = 1
    knobs: dict = field(default_factory=dict)
    build: Callable[[], nn.Module] = lambda: seeded_llama(num_blocks=2)
    layout: dict = field(default_factory=dict)
    micro_batches: int = 1
    stock: bool = False
    """Reduce by the backend's own collective."""
    clip: float | None = None
    optimizer: dict = field(default_factory=dict)

    def decisions(self, num_ranks: int) -> Decisions:
        return decisions(
            self.units,
            shard=num_ranks // self.replicate,
            replicate=self.replicate,
            micro_batch=2,
            num_micro_batches=self.micro_batches,
            **self.knobs,
        )


class Twice(nn.Module):
    """A model that runs one of its blocks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = seeded_llama(num_blocks=2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner.embedding(tokens)
        for index in (0, 1, 0):
            x = self.inner.layers[index](x)
        return self.inner.head(self.inner.norm(x))


def frozen() -> Llama:
    model = seeded_llama(num_blocks=2)
    model.embedding.requires_grad_(False)
    for layer in model.layers:
        layer.attention.q.requires_grad_(False)
    return model


class Unused(nn.Module):
    """A block that one parameter takes no part in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = seeded_llama(num_blocks=2)
        self.inner.layers[0].spare = nn.Linear(7, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens)


INNER = (unit("inner.layers.0"), unit("inner.layers.1"), ROOT)
CASES: dict[str, Case] = {
    "float32": Case(layout={"spare": 3}),
    "rows": Case(layout={"atom": rows, "reverse": True}),
    "stock": Case(stock=True),
    "bfloat16": Case(knobs=BFLOAT16),
    "output": Case(knobs=BFLOAT16 | {"output_dtype": "float32"}),
    "checkpoint inside": Case(knobs={"activations": checkpointed(*LAYERS)}),
    "checkpoint outside": Case(
        units=(unit("layers.0.attention"), unit("layers.0.feed_forward"), unit("layers.1"), ROOT),
        knobs={"activations": checkpointed(*LAYERS)},
    ),
    "activation offload": Case(knobs={"activations": tuple({"module": m, "policy": "offload"} for m in LAYERS)}),
    "selective": Case(
        knobs={
            "activations": tuple(
                {"module": m, "policy": "selective", "saved_ops": ("aten.mm.default",)} for m in LAYERS
            )
        }
    ),
    "bfloat16 checkpoint": Case(knobs=BFLOAT16 | {"activations": checkpointed("layers.1")}),
    "accumulation": Case(micro_batches=2),
    "no sync": Case(micro_batches=2, knobs={"runtime": {"gradient_sync": "last_micro_batch"}}),
    "bfloat16 no sync": Case(
        micro_batches=2, knobs=BFLOAT16 | {"runtime": {"gradient_sync": "last_micro_batch"}}, layout={"spare": 1}
    ),
    "keep": Case(units=(unit("layers.0", reshard_after_forward=False), unit("layers.1"), ROOT)),
    "grouped": Case(units=(*map(unit, LAYERS), unit("norm", "head"), ROOT)),
    "mixed": Case(layout={"units": lambda modules: modules == ("layers.1",)}),
    "two buffers": Case(layout={"group": lambda name: "norm" if "norm" in name else ""}),
    "tied": Case(build=partial(seeded_llama, num_blocks=2, tied=True)),
    "frozen": Case(build=frozen),
    "twice": Case(build=Twice, units=INNER),
    "unused": Case(build=Unused, units=INNER),
    "unused reduced": Case(build=Unused, units=INNER, knobs={"runtime": {"reduce_scatter_unused_params": True}}),
    "offload": Case(units=(unit("layers.0", parameter_tier="host", optimizer_tier="host"), unit("layers.1"), ROOT)),
    "prefetch": Case(
        units=(
            unit("layers.0", forward_prefetch=("layers.1",)),
            unit("layers.1", backward_prefetch=("layers.0",)),
            ROOT,
        )
    ),
    "clip": Case(clip=0.01),
    "foreach": Case(
        layout={"units": lambda modules: modules == ("layers.1",)}, optimizer={"foreach": True}, clip=0.1
    ),
    "fused": Case(layout={"units": lambda modules: modules != ("layers.0",)}, optimizer={"fused": True}),
    "aliased": Case(layout={"alias": True}),
    "aliased bfloat16": Case(
        knobs=BFLOAT16 | {"activations": checkpointed("layers.1")}, layout={"alias": True}, micro_batches=2
    ),
    "aliased prefetch": Case(
        units=(
            unit("layers.0", forward_prefetch=("layers.1",)),
            unit("layers.1", backward_prefetch=("layers.0",)),
            ROOT,
        ),
        layout={"alias": True},
    ),
    "aliased reshard to two": Case(
        units=(unit("layers.0", reshard_after_forward=2), unit("layers.1"), ROOT), layout={"alias": True}
    ),
    "hybrid": Case(replicate=2),
    "hybrid all-reduce last": Case(
        replicate=2, micro_batches=2, knobs={"runtime": {"gradient_sync": "all_reduce_on_last_micro_batch"}}
    ),
    "hybrid bfloat16": Case(replicate=2, knobs=BFLOAT16),
    "reshard to two": Case(units=(unit("layers.0", reshard_after_forward=2), unit("layers.1"), ROOT)),
}


def main() -> None:
    dist.init_process_group("gloo")
    num_ranks = dist.get_world_size()
    for name in sys.argv[1:]:
        name, _, path = name.partition("=")
        case = CASES[name]
        if path:
            made = Decisions.model_validate_json(Path(path).read_text())
            plain = copied_out(made)
        else:
            plain = case.decisions(num_ranks)
            made = with_layouts(case.build(), plain, **case.layout)
        even = train(case, plain)
        ragged = train(case, made, clip_by=even["norms"])
        if dist.get_rank() == 0:
            print(json.dumps({"case": name, "ranks": num_ranks, **difference(even, ragged)}), flush=True)
    dist.barrier()


def copied_out(made: Decisions) -> Decisions:
    """The same decisions without gathers in place."""
    units = tuple(unit.model_copy(update={"alias_gathers": False}) for unit in made.units)
    return made.model_copy(update={"units": units})


def in_place(model: nn.Module) -> list[str]:
    """Buffers that are gathered in place."""
    units = (module for module in model.modules() if isinstance(module, FSDPModule))
    gathers = (group._all_gather_comm for unit in units for group in private.param_groups(unit))
    return sorted({gather.buffer.name for gather in gathers if isinstance(gather, AliasedAllGather)})


def train(case: Case, made: Decisions, *, clip_by: Sequence[float] = ()) -> dict[str, object]:
    """Losses, gradients of the last step, parameters and norms by name, as whole tensors.

    Args:
        case: what to train.
        made: how it is sharded.
        clip_by: for each step the norm that gradients are taken to have: squares that are added in another order
            have another sum. Their own where there are none.
    """
    model = case.build()
    names = ("replicate", "shard") if case.replicate > 1 else ("shard",)
    sizes = (made.mesh.replicate, made.mesh.shard) if case.replicate > 1 else (made.mesh.shard,)
    applied = apply_decisions(model, made, init_device_mesh("cpu", sizes, mesh_dim_names=names))
    if not case.stock:
        deterministic_reduction(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **case.optimizer)
    applied.check_optimizer(optimizer)
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    losses, norms, gradients = [], [], {}
    for _ in range(NUM_STEPS):
        for index in range(case.micro_batches):
            applied.begin_micro_batch(index)
            tokens = torch.randint(0, 61, (2, 9), generator=generator)
            logits = model(tokens).float()
            loss = functional.cross_entropy(logits.view(-1, 61), tokens.view(-1))
            loss.backward()
            losses.append(loss.item())
        if case.clip:
            own = get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).full_tensor()
            norm = torch.tensor(clip_by[len(norms)]) if clip_by else own
            clip_grads_with_norm_(model.parameters(), case.clip, norm)
            norms.append(own.item())
        gradients = {name: whole(p.grad) for name, p in iter_parameters(model)}
        optimizer.step()
        optimizer.zero_grad()
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "aliased": in_place(model),
        "parameters": {name: whole(p) for name, p in iter_parameters(model)},
        "ragged": sum(isinstance(p, RaggedTensor) for p in model.parameters()),
        "moments": {
            name: whole(optimizer.state[p]["exp_avg"]) for name, p in iter_parameters(model) if p in optimizer.state
        },
    }


def whole(tensor: Tensor | None) -> Tensor | None:
    if isinstance(tensor, DTensor):
        return tensor.detach().full_tensor()
    return None if tensor is None else tensor.detach().clone()


def difference(even: dict, ragged: dict) -> dict[str, object]:
    """Names that differ, and by how much at most; equal means bit by bit."""
    found: dict[str, object] = {"ragged": ragged["ragged"], "aliased": ragged["aliased"], "losses": even["losses"]}
    found["loss difference"] = max(abs(a - b) for a, b in zip(even["losses"], ragged["losses"], strict=True))
    found["norms"] = [even["norms"], ragged["norms"]]
    for what in ("parameters", "gradients", "moments"):
        one_arm, other = even[what], ragged[what]
        assert list(one_arm) == list(other), (list(one_arm), list(other))
        found[what] = [name for name in one_arm if not same(one_arm[name], other[name])]
        found[f"{what} difference"] = max(
            ((a - other[name]).abs().max().item() for name, a in one_arm.items() if a is not None), default=0.0
        )
    return found


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


if __name__ == "__main__":
    main()
