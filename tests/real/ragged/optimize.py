"""One rank: train ragged models by Muon and 8-bit Adam, next to whole copies, and print how they differ.

The whole copies are updated twice: by the same gradients as the shards, and by those that a single process computes
from the batches of all ranks. A case is `name`, or `name=PATH` for the decisions in a file.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from planner.schema import Decisions, MatrixOwner
from runtime_client.apply import apply_decisions
from runtime_client.optimizers import Adam8bit, Muon
from runtime_client.ragged import deterministic_reduction
from tests.real.llama import seeded_llama
from tests.runtime_client.plans import decisions, unit
from tests.runtime_client.ragged.layouts import blocks_of_256, one, whole_matrices, with_layouts

NUM_STEPS = 5
UNITS = (unit("layers.0"), unit("layers.1"), unit(""))


def muon(model: nn.Module, owners: Mapping[str, int]) -> list[Optimizer]:
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if p.ndim == 2 and "layers" in name]
    others = [(name, p) for name, p in named if p.ndim != 2 or "layers" not in name]
    return [Muon(matrices, owners=owners, lr=0.02), AdamW(others, lr=0.01)]


def adam8bit(model: nn.Module, _: Mapping[str, int]) -> list[Optimizer]:
    return [Adam8bit(model.named_parameters(), lr=0.01)]


CASES: dict[str, tuple[Callable, Callable | None]] = {
    "muon": (muon, whole_matrices),
    "owned": (muon, one),
    "owned even": (muon, None),
    "adam8bit": (adam8bit, blocks_of_256),
}


def build() -> nn.Module:
    """Matrices of the blocks have at least 4,096 elements, so that their moments are of 8 bits."""
    return seeded_llama(num_blocks=2, width=64, hidden=100)


def main() -> None:
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        case, _, path = name.partition("=")
        make, atom = CASES[case]
        made = decisions(UNITS, shard=dist.get_world_size())
        if atom is not None:
            made = with_layouts(build(), made, atom=atom, spare=256)
        if name.startswith("owned"):
            made = with_owners(made)
        found = compare(make, Decisions.model_validate_json(Path(path).read_text()) if path else made)
        if dist.get_rank() == 0:
            print(json.dumps({"case": name, "ranks": dist.get_world_size(), **found}), flush=True)
    dist.barrier()


def with_owners(made: Decisions) -> Decisions:
    """Every matrix of a block has an owner, some ranks have more than others."""
    names = [name for name, p in build().named_parameters() if p.ndim == 2 and "layers" in name]
    owners = (MatrixOwner(parameter=n, rank=place**2 % dist.get_world_size()) for place, n in enumerate(names))
    return made.model_copy(update={"owners": tuple(owners)})


def compare(make: Callable[[nn.Module, Mapping[str, int]], list[Optimizer]], made: Decisions) -> dict[str, object]:
    num_ranks = dist.get_world_size()
    model, given, alone = build(), build(), build()
    applied = apply_decisions(model, made, init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("shard",)))
    deterministic_reduction(model)
    arms = {model: make(model, applied.owners), **{arm: make(arm, {}) for arm in (given, alone)}}
    for optimizer in arms[model]:
        applied.check_optimizer(optimizer)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(NUM_STEPS):
        tokens = torch.randint(0, 61, (num_ranks, 2, 9), generator=generator)
        loss_of(model, tokens[dist.get_rank()]).backward()
        for (name, piece), whole in zip(model.named_parameters(), given.parameters(), strict=True):
            assert piece.shape == whole.shape, name
            whole.grad = piece.grad.full_tensor()
        alone_loss = torch.stack([loss_of(alone, batch) for batch in tokens]).mean()
        alone_loss.backward()
        losses.append(alone_loss.item())
        for optimizers in arms.values():
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    sharded = {name: p.detach().full_tensor() for name, p in model.named_parameters()}
    local = [p.to_local().numel() for p in model.parameters()]
    return {
        "losses": losses,
        "pieces that are empty here": local.count(0),
        "same gradients": different(sharded, given),
        "states": different_states(arms[model], arms[given]),
        "single process": max((p - sharded[n]).abs().max().item() for n, p in alone.named_parameters()),
        "moved": max(
            (p - q).abs().max().item() for p, q in zip(alone.parameters(), build().parameters(), strict=True)
        ),
    }


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens).view(-1, 61), tokens.view(-1))


def different(sharded: dict[str, Tensor], whole: nn.Module) -> list[str]:
    return [name for name, p in whole.named_parameters() if not torch.equal(p, sharded[name])]


def different_states(sharded: list[Optimizer], whole: list[Optimizer]) -> list[str]:
    """States that differ, and the kinds of states there are."""
    found, kinds = [], set()
    for mine, other in zip(sharded, whole, strict=True):
        for state, expected in zip(mine.state.values(), other.state.values(), strict=True):
            for key, value in state.items():
                kinds.add(key)
                gathered = value.full_tensor() if hasattr(value, "full_tensor") else value
                if not torch.equal(gathered, expected[key]):
                    found.append(key)
    return [found, sorted(kinds)]


if __name__ == "__main__":
    main()
