import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils._python_dispatch import TorchDispatchMode

from planner.schema import LOSS_PATH, CallKind, KeptBy, Liveness, ModelDescription, SharedTensor
from runtime_client.describe import TrainingExample, describe, token_inputs


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

    def __init__(self, num_blocks: int = 5, vocab: int = 300, hidden: int = 160) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, 64)
        self.layers = nn.ModuleList(Block(64, 4, hidden) for _ in range(num_blocks))
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


@pytest.fixture(scope="session")
def described(small_llama_example: Callable[[], TrainingExample]) -> ModelDescription:
    """Of the small Llama; test files with a subject of their own have their own."""
    return describe(small_llama_example, name="small", micro_batch=2, sequence=64)


class LiveBytes(TorchDispatchMode):
    """Most bytes alive of what operations make."""

    def __init__(self, *outside: Tensor) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._alive: dict[int, object] = {tensor.untyped_storage()._cdata: tensor for tensor in outside}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._alive:
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        identity, size_bytes = storage._cdata, storage.nbytes()

        def release(_: object) -> None:
            self.now -= size_bytes
            del self._alive[identity]

        self._alive[identity] = weakref.ref(storage, release)
        self.now += size_bytes
        self.peak = max(self.peak, self.now)


@pytest.fixture(scope="session")
def live_bytes() -> type[LiveBytes]:
    """What MemTracker counts, but without its hooks, which keep parts of recomputed graphs alive."""
    return LiveBytes


class Group:
    """Stands for the parameters of a unit in FSDP2's own hook before the forward."""

    def __init__(self, post_backward: Callable[[], None]) -> None:
        self.post_backward = post_backward

    def hook(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return FSDPParamGroup._register_post_backward_hook(self, args, kwargs)


@pytest.fixture(scope="session")
def as_unit() -> Callable[..., None]:
    """Join the inputs of a module as FSDP2 does; the second argument is called in the unit's post-backward."""

    def join(module: nn.Module, post_backward: Callable[[], None] = lambda: None) -> None:
        module.register_forward_pre_hook(Group(post_backward).hook, with_kwargs=True, prepend=True)

    return join


def _liveness(kind: CallKind, policy: bool | tuple[str, ...]) -> Liveness:
    """`policy` is whether the call is checkpointed, or the operations that it keeps."""
    if not policy or kind.full is None:
        return kind.none
    if policy is True:
        return kind.full
    return next(entry.liveness for entry in kind.selective if entry.saved_ops == policy)


def _counts(tensor: SharedTensor, kinds: list[CallKind], policies: list[bool | tuple[str, ...]]) -> bool:
    calls = range(tensor.first_call, tensor.last_call + 1)
    checkpointed = [bool(policies[call]) for call in calls if kinds[call].full is not None]
    match tensor.kept_by:
        case KeptBy.FULL:
            return any(checkpointed)
        case KeptBy.NONE:
            return not all(checkpointed)
    return True


@pytest.fixture(scope="session")
def peak_bytes() -> Callable[..., int]:
    """The peak that `docs/model.md` gives for one rank that keeps all parameters: activations and gradients."""

    def peak(
        model: ModelDescription, micro_batch: int, sequence: int, checkpointed: Any, forward_only: bool = False
    ) -> int:
        point = (micro_batch, sequence)
        policies = [checkpointed(call.path) for call in model.calls]
        described = [model.kinds[call.kind] for call in model.calls]
        kinds = [_liveness(kind, policy) for kind, policy in zip(described, policies, strict=True)]
        orders = [model.kinds[call.kind].gradient_order for call in model.calls]
        kept = [kind.kept_bytes(*point) for kind in kinds]
        held = [0] * len(kinds)
        for tensor in model.shared:
            if _counts(tensor, described, policies):
                kept[tensor.first_call] += tensor.size_bytes.at(*point)
            elif tensor.held_until is not None:
                for call in range(tensor.first_call + 1, tensor.held_until + 1):
                    held[call] += tensor.size_bytes.at(*point)
        sizes = {
            name: parameter.num_elements * model.param_dtype.itemsize_bytes
            for name, parameter in model.iter_parameters()
        }
        tops = [
            sum(kept[:index]) + held[index] + moment.live_bytes.at(*point)
            for index, kind in enumerate(kinds)
            for moment in kind.forward
        ]
        if forward_only:
            return max(tops)
        gradients = 0
        for index in reversed(range(len(kinds))):
            path = model.calls[index].path
            prefix = "" if path in ("", LOSS_PATH) else f"{path}."
            own = [sizes[prefix + name] for name in orders[index]]
            tops += [
                sum(kept[:index]) + moment.live_bytes.at(*point) + gradients + sum(own[: moment.num_gradients])
                for moment in kinds[index].backward
            ]
            gradients += sum(own)
        return max(tops)

    return peak
