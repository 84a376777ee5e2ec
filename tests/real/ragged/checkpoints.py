"""One rank: save a ragged model, or load a checkpoint another way, and print what was found as JSON lines.

`save DIR`: train with ragged shards, save `DIR/first`, and leave the whole tensors in `DIR/expected.pt`.
`crash DIR RANKS`: load `first`, train on, and die (kill -9 on these ranks, comma separated) within the next save.
`load DIR HOW..`: load the latest checkpoint in DIR as `even`, `ragged`, `plain` or `stock` (plain FSDP2 and torch
alone) and compare; several one after another.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from runtime_client.apply import apply_decisions
from runtime_client.ragged.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import decisions, unit
from tests.runtime_client.ragged.layouts import one, rows, with_layouts

UNITS = (unit("layers.0"), unit("layers.1"), unit(""))


def build(*, seed: int = 0) -> Llama:
    model = seeded_llama(num_blocks=2)
    for layer in model.layers:
        layer.attention.q.bias = nn.Parameter(torch.ones(32))
    if seed:
        torch.manual_seed(seed)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    return model


def ragged(model: nn.Module, **layout: object) -> nn.Module:
    made = with_layouts(model, decisions(UNITS, shard=dist.get_world_size()), **layout)
    apply_decisions(model, made, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",)))
    return model


def even(model: Llama) -> nn.Module:
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def step(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 61, (2, 9), generator=generator)
    functional.cross_entropy(model(tokens).view(-1, 61), tokens.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()


def whole(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and optimizer states by name, gathered."""
    found = {}
    for name, parameter in model.named_parameters():
        states = {f"{name} {key}": value for key, value in optimizer.state[parameter].items()}
        for key, value in {name: parameter.detach(), **states}.items():
            found[key] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def save(directory: Path) -> None:
    model = ragged(build(), atom=one, spare=5)
    optimizer = AdamW(model.parameters(), lr=0.01)
    for seed in range(2):
        step(model, optimizer, seed)
    save_checkpoint(directory / "first", model, [optimizer])
    expected = whole(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(expected, directory / "expected.pt")
    report({"saved": sorted(path.name for path in directory.iterdir())})


def crash(directory: Path, victims: set[int]) -> None:
    model = ragged(build(seed=1), atom=rows)
    optimizer = AdamW(model.parameters(), lr=0.01)
    load_checkpoint(directory / "first", model, [optimizer])
    step(model, optimizer, 9)
    write = dcp.FileSystemWriter.write_data

    def die(self, plan, planner):
        if dist.get_rank() in victims:
            self.path.joinpath(f"half written by {dist.get_rank()}").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, plan, planner)

    dcp.FileSystemWriter.write_data = die
    save_checkpoint(directory / "second", model, [optimizer])


def load(directory: Path, how: str) -> None:
    model = build(seed=2)
    match how:
        case "even" | "stock":
            even(model)
        case "ragged":
            ragged(model, atom=rows, reverse=True)
    optimizer = AdamW(model.parameters(), lr=0.5, betas=(0.1, 0.2))
    path = latest_checkpoint(directory)
    if how == "stock":
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(state, checkpoint_id=path)
        dcp.state_dict.set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    else:
        load_checkpoint(path, model, [optimizer])
    expected = torch.load(directory / "expected.pt")
    found = whole(model, optimizer)
    different = [name for name, value in expected.items() if not torch.equal(value, found[name])]
    group = optimizer.param_groups[0]
    step(model, optimizer, 5)
    report(
        {
            "loaded": path.name,
            "how": how,
            "tensors": len(found),
            "missing": sorted(set(expected) ^ set(found)),
            "different": different,
            "options": [group["lr"], list(group["betas"])],
            "left": sorted(path.name for path in directory.iterdir()),
        }
    )


def report(found: dict[str, object]) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    command, directory, *rest = sys.argv[1:]
    if command == "load" and rest == ["plain"]:
        return load(Path(directory), "plain")
    dist.init_process_group("gloo")
    match command:
        case "save":
            save(Path(directory))
        case "crash":
            crash(Path(directory), {int(rank) for rank in rest[0].split(",")})
        case "load":
            for how in rest:
                load(Path(directory), how)
    dist.barrier()
    return None


if __name__ == "__main__":
    main()
