"""A small decoder-only transformer in the manner of Llama, so that a test of sharding needs no model library."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, self.num_heads, -1).transpose(1, 2)

        y = functional.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), is_causal=True
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, num_heads)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Sizes are odd on purpose: no dimension of the vocabulary or the hidden layer divides by 2 or 4."""

    def __init__(
        self,
        *,
        num_blocks: int = 4,
        width: int = 32,
        num_heads: int = 4,
        hidden: int = 51,
        vocabulary: int = 61,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, num_heads, hidden) for _ in range(num_blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def seeded_llama(**sizes: object) -> Llama:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Llama(**sizes)  # type: ignore[arg-type]
