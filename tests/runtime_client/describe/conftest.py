from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.schema import CallKind, Liveness, ModelDescription
from runtime_client.describe import TrainingExample, token_inputs


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cosine: Tensor) -> Tensor:
        batch, sequence, dim = x.shape
        heads = [
            project(x).view(batch, sequence, self.num_heads, -1).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        ]
        out = F.scaled_dot_product_attention(heads[0] * cosine, heads[1] * cosine, heads[2], is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, sequence, dim))


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(dim), Attention(dim, num_heads)
        self.mlp_norm, self.mlp = RMSNorm(dim), MLP(dim, hidden)

    def forward(self, x: Tensor, cosine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine)
        return x + self.mlp(self.mlp_norm(x))


class SmallLlama(nn.Module):
    """Has glue (the table of cosines), a tensor that all blocks share, and no tricks."""

    def __init__(self, num_blocks: int = 5, vocab: int = 300) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, 64)
        self.layers = nn.ModuleList(Block(64, 4, 160) for _ in range(num_blocks))
        self.norm = RMSNorm(64)
        self.head = nn.Linear(64, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        angles = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * torch.arange(16.0)
        cosine = angles.cos().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine)
        return self.head(self.norm(x))


@pytest.fixture(scope="session")
def small_llama() -> Callable[..., nn.Module]:
    return SmallLlama


@pytest.fixture(scope="session")
def small_llama_example() -> Callable[[], TrainingExample]:
    return lambda: TrainingExample(model=SmallLlama(), inputs=token_inputs)


def _liveness(kind: CallKind, checkpointed: bool) -> Liveness:
    return kind.full if checkpointed and kind.full is not None else kind.none


@pytest.fixture(scope="session")
def peak_bytes() -> Callable[..., int]:
    """The peak that `docs/model.md` gives for one rank that keeps all parameters: activations and gradients."""

    def peak(model: ModelDescription, micro_batch: int, sequence: int, checkpointed: Any) -> int:
        point = (micro_batch, sequence)
        kinds = [_liveness(model.kinds[call.kind], checkpointed(call.path)) for call in model.calls]
        orders = [model.kinds[call.kind].gradient_order for call in model.calls]
        kept = [kind.kept_bytes(*point) for kind in kinds]
        for tensor in model.shared:
            kept[tensor.first_call] += tensor.size_bytes.at(*point)
        sizes = {
            name: parameter.num_elements * model.param_dtype.itemsize_bytes
            for name, parameter in model.iter_parameters()
        }
        tops = [
            sum(kept[:index]) + moment.live_bytes.at(*point)
            for index, kind in enumerate(kinds)
            for moment in kind.forward
        ]
        gradients = 0
        for index in reversed(range(len(kinds))):
            path = model.calls[index].path
            own = [sizes[f"{path}.{name}" if path else name] for name in orders[index]]
            tops += [
                sum(kept[:index]) + moment.live_bytes.at(*point) + gradients + sum(own[: moment.num_gradients])
                for moment in kinds[index].backward
            ]
            gradients += sum(own)
        return max(tops)

    return peak
