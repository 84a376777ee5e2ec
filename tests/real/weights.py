"""One rank: load, initialise and save models of every kind of shard, and print what differs from the unsharded one.

`weights.py FOLDER`: the folder has `files/` (safetensors of `build(tied)`, with an index) for both ways of tying.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from planner.schema import Decisions
from runtime_client.apply import AppliedPlan, apply_decisions
from runtime_client.weights import (
    initialise,
    load_checkpoint,
    load_from_rank_0,
    load_safetensors,
    materialise,
    on_meta,
    save_checkpoint,
)
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import checkpointed, decisions, unit
from tests.runtime_client.ragged.layouts import one, rows, with_layouts

HOST = {"parameter_tier": "host", "optimizer_tier": "host"}


def build(tied: bool = False) -> Llama:
    """With a buffer that checkpoints have, and one that they have not."""
    model = seeded_llama(num_blocks=2, tied=tied)
    model.register_buffer("scale", torch.arange(3.0))
    model.layers[1].register_buffer("frequencies", torch.linspace(0, 1, 5), persistent=False)
    return model


def kinds(num_ranks: int) -> dict[str, Callable[[nn.Module], Decisions]]:
    units = (unit("layers.0"), unit("layers.1"), unit(""))
    first_on_host = (unit("layers.0", **HOST), unit("layers.1"), unit(""))
    found: dict[str, Callable[[nn.Module], Decisions]] = {
        "even": lambda _: decisions(units, shard=num_ranks, activations=checkpointed("layers.1")),
        "host": lambda _: decisions(first_on_host, shard=num_ranks),
        "rows": lambda model: with_layouts(model, decisions(units, shard=num_ranks), atom=rows),
        "elements": lambda model: with_layouts(model, decisions(first_on_host, shard=num_ranks), atom=one, spare=5),
        "bfloat16": lambda _: decisions(units, shard=num_ranks),
    }
    if num_ranks == 4:
        found["hybrid"] = lambda _: decisions(units, shard=2, replicate=2)
    return found


def applied(kind: str, *, tied: bool = False, meta: bool = False) -> AppliedPlan:
    """A model without values, sharded."""
    with torch.device("meta") if meta else on_meta():
        model = build(tied)
    if kind == "bfloat16":
        model.to(torch.bfloat16)
    made = kinds(dist.get_world_size())[kind](model)
    sizes = (made.mesh.replicate, made.mesh.shard) if made.mesh.replicate > 1 else (made.mesh.shard,)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
    assert all(parameter.is_meta for parameter in model.parameters())
    return apply_decisions(model, made, mesh)


def whole(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    return {
        name.replace("_checkpoint_wrapped_module.", ""): value.full_tensor()
        if hasattr(value, "full_tensor")
        else value
        for name, value in named
    }


def different(found: AppliedPlan, expected: nn.Module) -> list[str]:
    """Names that differ; the model must also run."""
    mine, right = whole(found.model), whole(expected)
    assert mine.keys() == right.keys()
    tokens = torch.arange(8).view(2, 4)
    found.model(tokens).float().sum().backward()
    return [
        name
        for name, value in right.items()
        if not torch.equal(mine[name].detach(), value.detach().to(mine[name].dtype))
    ]


def local_bytes(found: AppliedPlan, itemsize: int) -> int:
    """Of the shards of this rank and the persistent buffer."""
    return sum(parameter.to_local().numel() * itemsize for parameter in found.model.parameters()) + 12


def loading(folder: Path, kind: str, tied: bool) -> dict[str, object]:
    model = applied(kind, tied=tied)
    loaded = load_safetensors(model, folder / ("tied" if tied else "files"))
    on_host = any(value.is_meta for value in model.model.parameters())
    return {
        "different": different(model, build(tied)),
        "read": loaded.read_bytes - local_bytes(model, 4),
        "converted": loaded.converted,
        "tied": model.model.head.weight is model.model.embedding.weight,
        "meta": on_host,
    }


def from_rank_0(kind: str) -> dict[str, object]:
    model = applied(kind, meta=True)
    state = build().state_dict() if dist.get_rank() == 0 else None
    load_from_rank_0(model, state, build=build)
    return {"different": different(model, build())}


def from_scratch(kind: str) -> dict[str, object]:
    model = applied(kind)
    initialise(model, seed=7, init=_init)
    right = build().to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    torch.manual_seed(7)
    right.apply(_init)
    return {"different": different(model, right)}


def _init(module: nn.Module) -> None:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


def saved(folder: Path, kind: str) -> dict[str, object]:
    """Saved by shards, loaded into another kind of shards that was built on the meta device."""
    first = applied(kind)
    load_safetensors(first, folder / "files")
    save_checkpoint(folder / f"saved-{kind}-{dist.get_world_size()}", first.model)
    second = applied("even" if kind != "even" else "elements")
    materialise(second)
    load_checkpoint(folder / f"saved-{kind}-{dist.get_world_size()}", second.model)
    right = build().to(torch.bfloat16).float() if kind == "bfloat16" else build()
    right.layers[1].frequencies = build().layers[1].frequencies
    return {"different": different(second, right)}


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    for kind in kinds(dist.get_world_size()):
        found = {
            "load": loading(folder, kind, tied=False),
            "tied": loading(folder, kind, tied=True),
            "broadcast": from_rank_0(kind),
            "scratch": from_scratch(kind),
            "saved": saved(folder, kind),
        }
        print(json.dumps({"kind": kind} | found), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
