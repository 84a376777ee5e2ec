"""Three models whose blocks compute for tens of milliseconds on a core, and are gathered as fast at 500 Mbit/s."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime_client.describe import TrainingExample, token_inputs


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, num_heads: int, *, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class LlamaBlock(nn.Module):
    """Root-mean-square norms and a gated feed-forward, no biases."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 32 * 32
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, num_heads, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class GptBlock(nn.Module):
    """Layer norms, biases and a feed-forward of four widths."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, bias=True)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))
        return result


class WideBlock(nn.Module):
    """Two maps of the full hidden width: few units, each of them large."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.middle = nn.Linear(hidden, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        y = functional.relu(self.up(self.norm(x)))
        result: Tensor = x + self.down(functional.relu(self.middle(y)))
        return result


class Stack(nn.Module):
    """Token ids `(batch, sequence)` to logits; positions are learned where there is a table for them."""

    def __init__(self, block: Callable[[], nn.Module], num_blocks: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(block() for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(batch, sequence, vocabulary)`."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """A model and its batch on each rank."""

    build: Callable[[], nn.Module]
    num_blocks: int
    vocabulary: int
    micro_batch: int
    sequence: int

    def example(self) -> TrainingExample:
        """The same weights on every rank."""
        torch.manual_seed(0)
        return TrainingExample(model=self.build(), inputs=token_inputs)


def _llama() -> nn.Module:
    return Stack(lambda: LlamaBlock(384, 6), 6, 384, 1024)


def _gpt() -> nn.Module:
    return Stack(lambda: GptBlock(320, 5), 8, 320, 1024)


def _wide() -> nn.Module:
    return Stack(lambda: WideBlock(512, 1536), 4, 512, 1024)


def _small() -> nn.Module:
    return Stack(lambda: LlamaBlock(64, 2), 3, 64, 256)


MODELS: Mapping[str, NetworkModel] = {
    "llama": NetworkModel(build=_llama, num_blocks=6, vocabulary=1024, micro_batch=2, sequence=256),
    "gpt": NetworkModel(build=_gpt, num_blocks=8, vocabulary=1024, micro_batch=2, sequence=256),
    "wide": NetworkModel(build=_wide, num_blocks=4, vocabulary=1024, micro_batch=4, sequence=256),
    "small": NetworkModel(build=_small, num_blocks=3, vocabulary=256, micro_batch=2, sequence=64),
}
MEASURED = ("llama", "gpt", "wide")
"""Those of the matrix; the small one is for trying the bench."""
