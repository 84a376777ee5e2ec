"""What one aten operation costs: its region kind, FLOPs, bytes moved, and whether it launches a kernel at all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from planner.schema.model import RegionKind

_CHUNKED_LOSS = "_linear_cross_entropy_batch_chunked"
_KINDS = (
    (RegionKind.GROUPED_MATMUL, ("_grouped_mm", "_scaled_grouped_mm")),
    (RegionKind.MATMUL, ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "dot", "mv", "addmv", _CHUNKED_LOSS)),
    (RegionKind.CONVOLUTION, ("convolution", "convolution_backward")),
    (RegionKind.EMBEDDING, ("embedding", "embedding_dense_backward", "embedding_renorm_", "_embedding_bag")),
    (RegionKind.NORM, ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm")),
    (RegionKind.OTHER, ("sort", "topk", "index", "index_put", "index_put_", "_unsafe_index_put", "index_add")),
    (RegionKind.OTHER, ("index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_")),
    (RegionKind.OTHER, ("cumsum", "histc")),
)
_KIND_OF_OP = {name: kind for kind, names in _KINDS for name in names}
_ATTENTION_WORDS = ("_attention", "flash_attn")
_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
_VIEWS = ("_unsafe_view", "_reshape_alias", "lift_fresh", "detach_")
"""Operations that launch nothing although their schema does not say that they return a view."""
_LOOKUPS = ("embedding", "index", "index_select", "gather")
"""Operations that read of their first input as much as they return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """What is known of an operation before it runs.

    Attributes:
        name: e.g. `aten.mm`.
        overload: e.g. `aten.mm.default`.
        kind: region kind, or None where the module around decides.
        is_view: it launches nothing: its outputs are its inputs seen differently.
        mutates: it writes to an input.
        allocates_only: it makes memory without a kernel.
        is_lookup: it reads of its first input as much as it returns.
        host_sync: the host waits for its result.
        is_random: it draws random numbers; fused attention only does with dropout.
        num_flops: FLOPs from arguments and result, where the operation has any.
    """

    name: str
    overload: str
    kind: RegionKind | None
    is_view: bool
    mutates: bool
    allocates_only: bool
    is_lookup: bool
    host_sync: bool
    is_random: bool
    num_flops: Callable[..., int] | None


@cache
def facts_of(op: OpOverload) -> OpFacts:
    """Facts of an operation; the same for each of its calls."""
    base = op._schema.name.partition("::")[2]
    is_attention = any(word in base for word in _ATTENTION_WORDS)
    forward_name = base.removesuffix("_backward") if base not in _KIND_OF_OP else base
    return OpFacts(
        name=str(op.overloadpacket),
        overload=str(op),
        kind=RegionKind.ATTENTION if is_attention else _KIND_OF_OP.get(forward_name),
        is_view=op.is_view or base in _VIEWS,
        mutates=op._schema.is_mutable,
        allocates_only=base in _ALLOCATIONS,
        is_lookup=base in _LOOKUPS,
        host_sync=base == "_local_scalar_dense",
        is_random=torch.Tag.nondeterministic_seeded in op.tags,
        num_flops=_flop_formula(op, base),
    )


def tensors_in(values: Sequence[Any]) -> Iterator[Tensor]:
    """Tensors among arguments or results, one level of lists deep, as aten schemas have them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, Tensor):
                    yield item


def distinct_bytes(tensor: Tensor) -> int:
    """Bytes of the distinct elements of a tensor; dimensions that `expand` made count once."""
    num_elements = tensor.numel()
    strides = tensor.stride()
    if num_elements and 0 in strides:
        num_elements = 1
        for size, stride in zip(tensor.shape, strides, strict=True):
            num_elements *= size if stride else 1
    return num_elements * tensor.element_size()


def moved_bytes(facts: OpFacts, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Bytes that the kernel reads (each input once) and writes (each output once)."""
    written = sum(map(distinct_bytes, outputs))
    seen: set[int] = set()
    read = 0
    for index, tensor in enumerate(inputs):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        read += written if facts.is_lookup and index == 0 else distinct_bytes(tensor)
    return read + written


def _flop_formula(op: OpOverload, base: str) -> Callable[..., int] | None:
    if base in _EXTRA_FORMULAS:
        return _EXTRA_FORMULAS[base]
    formula = flop_registry.get(op.overloadpacket)
    if formula is None:
        return None
    return lambda args, kwargs, out: int(formula(*args, **kwargs, out_val=out))


def _grouped_mm_flops(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:  # noqa: ANN401
    left, right = args[0], args[1]
    return int(2 * left.numel() * right.shape[-1])


def _cpu_flash_flops(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:  # noqa: ANN401
    return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))  # type: ignore[no-untyped-call]


def _cpu_flash_backward_flops(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:  # noqa: ANN401
    shapes = [args[index].shape for index in range(4)]
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _chunked_loss_flops(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:  # noqa: ANN401
    """Logits, and both gradients where they are computed (the third and second last arguments)."""
    num_products = 1 + bool(args[-3]) + bool(args[-2])
    return int(num_products * 2 * args[0].numel() * args[1].shape[0])


_EXTRA_FORMULAS: dict[str, Callable[..., int]] = {
    "_grouped_mm": _grouped_mm_flops,
    _CHUNKED_LOSS: _chunked_loss_flops,
    "_scaled_dot_product_flash_attention_for_cpu": _cpu_flash_flops,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _cpu_flash_backward_flops,
}

UNBOOKED = frozenset({torch.ops.prim.device.default, torch.ops.aten.detach.default, torch.ops.aten.alias.default})
"""Operations that autograd and its hooks add as they please; they cost nothing and have no node."""
