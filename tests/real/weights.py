"""One rank: load, initialise and save models of every kind of shard, and print what differs from the unsharded one.

`weights.py FOLDER KIND ..`: the folder has safetensors of `build(tied)` with an index, `files/` and `tied/`, a
model of transformers as it saves itself, `transformers/`, and `large/` for measuring memory.
"""

import gc
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
    output = found.model(tokens)
    getattr(output, "logits", output).float().sum().backward()
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


def of_transformers(folder: Path) -> dict[str, object]:
    """Equal logits, with frequencies of rotary embeddings that are in no file."""
    right = tied_transformer()
    tokens = torch.arange(12).view(2, 6)
    expected = right(tokens).logits
    units = (unit("model.layers.0"), unit("model.layers.1"), unit(""))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    found: dict[str, object] = {}
    for context in (on_meta(), torch.device("meta")):
        with context:
            model = tied_transformer()
        planned = apply_decisions(model, decisions(units, shard=dist.get_world_size()), mesh)
        load_safetensors(planned, folder / "transformers", build=tied_transformer)
        found[type(context).__name__] = torch.equal(model(tokens).logits, expected)
    initialise(planned, seed=5, init=model._init_weights)
    torch.manual_seed(5)
    right.apply(right._init_weights)
    found["scratch"] = different(planned, right)
    return found


def tied_transformer() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 51, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=True, use_cache=False))


def large() -> nn.Module:
    """Half a GiB would be better to see, an eighth is enough."""
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))


def memory(folder: Path) -> dict[str, object]:
    """Growth of the largest resident set while loading, as a part of the whole model."""

    def shards() -> AppliedPlan:
        with on_meta():
            model = large()
        units = (*(unit(str(index)) for index in range(8)), unit(""))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
        return apply_decisions(model, decisions(units, shard=dist.get_world_size()), mesh)

    def from_rank_0() -> None:
        load_from_rank_0(shards(), large().state_dict() if dist.get_rank() == 0 else None)

    ways = {
        "slices": lambda: load_safetensors(shards(), folder / "large"),
        "rank 0": from_rank_0,
        "every rank": large,
    }
    return {name: growth(way) / (8 * 2048 * 2048 * 4) for name, way in ways.items()}


def growth(load: Callable[[], object]) -> int:
    """Bytes by which the resident set grows at its largest, file pages that are mapped included."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    kept = load()
    grown = resident_bytes("VmHWM") - before
    del kept
    dist.barrier()
    return grown


def resident_bytes(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    first = {"transformers": of_transformers(folder), "memory": memory(folder)}
    print(json.dumps(first), flush=True)
    for kind in sys.argv[2:]:
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
