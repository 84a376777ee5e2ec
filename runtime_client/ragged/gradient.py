"""The gradient of a planned buffer, before FSDP2 reduces it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime_client.ragged.private import CHUNK_CAT, NO_TORCH_FUNCTION

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Place:
    """Elements `offset .. offset + num_elements - 1` of a buffer."""

    offset: int
    num_elements: int

    @property
    def end(self) -> int:
        """First element after the place."""
        return self.offset + self.num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPlan:
    """Where the gradients of a buffer go."""

    num_elements: int
    places: tuple[Place, ...]
    """Of each parameter of the buffer, in the order of the buffer."""
    on_reduce: Callable[[frozenset[int]], None]
    """Told the parameters that have a gradient when these are copied for the reduction."""


class PlannedGradient(torch.Tensor):
    """The gradients of the parameters of one buffer, each as autograd left it, posing as the buffer's gradient.

    One-dimensional, `(num_elements,)`. Its memory is that of the gradients that are there: parameters that come
    later in backward, or get no gradient, take none. FSDP2 adds such tensors to each other, casts them, and copies
    them into the reduce-scatter input, where each gradient goes straight to its planned place and gaps become
    zeros. Other operations are refused.
    """

    plan: GradientPlan
    parts: dict[int, Tensor]
    """Gradients by the number of the parameter."""

    __torch_function__ = NO_TORCH_FUNCTION  # type: ignore[assignment]

    @staticmethod
    def __new__(  # noqa: D102
        cls: type["PlannedGradient"],
        plan: GradientPlan,
        parts: Mapping[int, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "PlannedGradient":
        made = torch.Tensor._make_wrapper_subclass(cls, (plan.num_elements,), dtype=dtype, device=device)
        made.plan = plan
        made.parts = dict(parts)
        return made

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"PlannedGradient({self.plan.num_elements} elements, gradients of {sorted(self.parts)})"

    def __tensor_flatten__(self) -> tuple[list[str], GradientPlan]:
        """Names of the tensors inside, for tools that count memory."""
        return [f"part{index}" for index in self.parts], self.plan

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], plan: GradientPlan, _size: Sequence[int], _stride: Sequence[int]
    ) -> "PlannedGradient":
        parts = {int(name.removeprefix("part")): tensor for name, tensor in inner.items()}
        first = next(iter(parts.values()))
        return PlannedGradient(plan, parts, dtype=first.dtype, device=first.device)

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("part") and name[4:].isdigit():
            return self.parts[int(name[4:])]
        raise AttributeError(name)

    def add_part(self, index: int, gradient: Tensor) -> None:
        """Add the gradient of one parameter, which is the caller's no longer."""
        if index in self.parts:
            self.parts[index].add_(gradient)
        else:
            self.parts[index] = gradient

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]  # noqa: ANN001, ANN206
        kwargs = kwargs or {}
        if func is CHUNK_CAT:
            _chunk_cat(*args, **kwargs)
            return None
        if func is aten.detach.default:
            return _like(args[0], args[0].parts)
        if func is aten._to_copy.default:
            dtype = kwargs["dtype"]
            return _like(args[0], {index: part.to(dtype) for index, part in args[0].parts.items()}, dtype)
        if func is aten.add_.Tensor and isinstance(args[1], PlannedGradient) and not kwargs:
            mine, other = args
            for index, part in other.parts.items():
                mine.add_part(index, part if index in mine.parts else part.to(mine.dtype))
            return mine
        raise NotImplementedError(f"{func} of the gradient of a ragged buffer: use the gradients of its parameters")


def _like(old: PlannedGradient, parts: Mapping[int, Tensor], dtype: torch.dtype | None = None) -> PlannedGradient:
    return PlannedGradient(old.plan, parts, dtype=dtype or old.dtype, device=old.device)


def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int, *, out: Tensor) -> None:
    """What `fsdp::chunk_cat` does for one-dimensional tensors that divide evenly: column block by column block."""
    assert dim == 0
    column = 0
    for tensor in tensors:
        width = tensor.numel() // num_chunks
        block = out[:, column : column + width]
        if isinstance(tensor, PlannedGradient):
            _fill(block, tensor)
        else:
            block.copy_(tensor.reshape(num_chunks, width))
        column += width


def _fill(block: Tensor, gradient: PlannedGradient) -> None:
    """Copy the gradients to their places in `block`, `(ranks, elements per rank)`."""
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    gaps: list[Tensor] = []
    end = 0
    for index, place in enumerate(gradient.plan.places):
        if index not in gradient.parts:
            continue
        gaps += [target for _, target in _cut(block, Place(end, place.offset - end))]
        flat = gradient.parts[index].reshape(-1)
        for run, target in _cut(block, place):
            targets.append(target)
            sources.append(flat[run.offset : run.end].view(target.shape))
        end = place.end
    gaps += [target for _, target in _cut(block, Place(end, gradient.plan.num_elements - end))]
    gradient.plan.on_reduce(frozenset(gradient.parts))
    torch._foreach_copy_(targets, sources)
    if gaps:
        torch._foreach_zero_(gaps)


def _cut(block: Tensor, place: Place) -> Iterator[tuple[Place, Tensor]]:
    """Views of `block` that make up a place of the buffer, with the run of the place that each holds.

    The buffer lies in the rows of `block`: a place is the rest of a row, whole rows, and the start of a row.
    """
    width = block.size(1)
    start = place.offset
    while start < place.end:
        row, column = divmod(start, width)
        rows = (place.end - start) // width if column == 0 else 0
        if rows:
            target, length = block[row : row + rows], rows * width
        else:
            length = min(place.end - start, width - column)
            target = block[row, column : column + length]
        yield Place(start - place.offset, length), target
        start += length
