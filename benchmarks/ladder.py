"""A model whose bytes can be counted on fingers: every linear map is 1024 x 1024, 4 MiB in float32."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime_client.describe import TrainingExample
from runtime_client.describe.example import token_inputs

WIDTH = 1024
UNIT_BYTES = WIDTH * WIDTH * 4
"""Of each block in float32; the root has two such maps."""


class Rung(nn.Module):
    """`x + silu(map(x))` on `(..., width)`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` to the same shape."""
        return x + functional.silu(self.map(x))


class Ladder(nn.Module):
    """Embedding, blocks and head, without norms."""

    def __init__(self, num_blocks: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH, dtype=dtype)
        self.layers = nn.ModuleList(Rung(dtype) for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids `(batch, sequence)` to logits `(batch, sequence, width)`."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def build(num_blocks: int = 8, stored: str = "float32") -> TrainingExample:
    """A ladder whose parameters are stored in a type of torch."""
    return TrainingExample(model=Ladder(num_blocks, getattr(torch, stored)), inputs=token_inputs)
