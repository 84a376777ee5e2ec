"""A small Llama of our own, and a way to train it, for the dry-run tests."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Example:
    model: nn.Module
    vocabulary: int

    def inputs(self, micro_batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens = torch.randint(0, self.vocabulary, (micro_batch, sequence))
        targets = torch.randint(0, self.vocabulary, (micro_batch, sequence))
        return (tokens, targets), {}

    def loss(self, output: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return functional.cross_entropy(output.float().flatten(0, 1), args[1].flatten())


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return wide.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = RootMeanSquareNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = RootMeanSquareNorm(width)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, *, num_blocks: int, width: int, heads: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, hidden) for _ in range(num_blocks))
        self.norm = RootMeanSquareNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def example(
    num_blocks: int = 8, width: int = 1024, heads: int = 16, hidden: int = 2816, vocabulary: int = 32000
) -> Example:
    model = Llama(num_blocks=num_blocks, width=width, heads=heads, hidden=hidden, vocabulary=vocabulary)
    return Example(model=model, vocabulary=vocabulary)


def shared_layer() -> Example:
    """One block that runs three times."""
    model = Llama(num_blocks=1, width=64, heads=4, hidden=128, vocabulary=256)
    model.layers.append(model.layers[0])
    model.layers.append(model.layers[0])
    return Example(model=model, vocabulary=256)


def unused_projection() -> Example:
    """The last block has a projection that nothing uses."""
    found = small()
    found.model.layers[2].unused = nn.Linear(64, 32, bias=False)
    return found


small = functools.partial(example, num_blocks=3, width=64, heads=4, hidden=128, vocabulary=256)
