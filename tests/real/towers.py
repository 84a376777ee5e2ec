"""A model with a tower for images that some ranks have none of, and one rank that trains it by decisions.

Run by ranks as `towers.py DECISIONS`: rank 0 has an image in every step, the others in every second one. Prints the
largest difference from a whole copy that is trained on the batches of all ranks.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from planner.schema import Decisions
from runtime_client.apply import apply_decisions
from runtime_client.describe import TrainingExample

WIDTH, VOCABULARY, BATCH, SEQUENCE, NUM_STEPS = 32, 61, 2, 8, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(functional.gelu(self.up(hidden)))


class Towers(nn.Module):
    """Text through `layers`, with what `tower` makes of an image added to it where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.tower = nn.ModuleList(Block() for _ in range(2))
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, image: Tensor | None = None) -> Tensor:
        hidden = self.embed(tokens)
        if image is not None:
            for block in self.tower:
                image = block(image)
            hidden = hidden + image
        for block in self.layers:
            hidden = block(hidden)
        return self.head(hidden)


def build() -> Towers:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Towers()


def example() -> TrainingExample:
    """Both inputs, as the rank has them that runs everything."""

    def inputs(micro_batch: int, sequence: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        tokens = torch.zeros(micro_batch, sequence, dtype=torch.long)
        return (tokens, torch.zeros(micro_batch, sequence, WIDTH)), {}

    return TrainingExample(model=build(), inputs=inputs)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    """Of the batch of one rank in one step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    image = torch.randn(BATCH, SEQUENCE, WIDTH, generator=generator)
    logits = model(tokens[:, :-1], image if rank == 0 or step % 2 == 0 else None)
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model, whole = build(), build()
    made = Decisions.model_validate_json(Path(sys.argv[1]).read_text())
    apply_decisions(model, made, init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("shard",)))
    arms = (torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(whole.parameters(), lr=0.1))
    for step in range(NUM_STEPS):
        loss_of(model, rank, step).backward()
        torch.stack([loss_of(whole, one, step) for one in range(num_ranks)]).mean().backward()
        for arm in arms:
            arm.step()
            arm.zero_grad()
    differences = [
        (sharded.full_tensor() - alone).abs().max().item()
        for sharded, alone in zip(model.parameters(), whole.parameters(), strict=True)
    ]
    print(json.dumps({"difference": max(differences)}), flush=True)


if __name__ == "__main__":
    main()
