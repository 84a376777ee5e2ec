"""Tensors of a model by the names that a checkpoint has for them, and what a rank writes of each."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor

from runtime_client.fingerprint import unwrapped_name
from runtime_client.weights.errors import CheckpointMismatch

Rename = Callable[[str], str]
_NUM_NAMED = 5


@dataclass(kw_only=True)
class Loaded:
    """What a rank did."""

    num_tensors: int = 0
    read_bytes: int = 0
    """Of the checkpoint, by this rank."""
    converted: dict[str, int] = field(default_factory=dict)
    """Number of tensors by conversion, as `bfloat16 -> float32`."""

    def note(self, found: torch.dtype, wanted: torch.dtype) -> None:
        """Count a tensor."""
        self.num_tensors += 1
        if found is not wanted:
            key = f"{str(found).removeprefix('torch.')} -> {str(wanted).removeprefix('torch.')}"
            self.converted[key] = self.converted.get(key, 0) + 1


def match(
    model: nn.Module, available: Collection[str], *, rename: Rename, ignore: Iterable[str]
) -> list[tuple[str, Tensor]]:
    """Parameters and persistent buffers with their names in a checkpoint; a tied one with one of its names.

    Several may have one name: `rename` may load a checkpoint of tied parameters into a model that ties none.

    Raises:
        CheckpointMismatch: the checkpoint lacks some, or has others that `ignore` (globs) does not name.
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in _state(model):
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    found = {
        key: next((rename(name) for name in own if rename(name) in available), None) for key, own in names.items()
    }
    missing = [names[key][0] for key, name in found.items() if name is None]
    known = {rename(name) for own in names.values() for name in own}
    globs = tuple(ignore)
    unexpected = [
        name for name in available if name not in known and not any(fnmatchcase(name, glob) for glob in globs)
    ]
    if missing or unexpected:
        raise CheckpointMismatch(_difference(missing, unexpected))
    return [(name, tensors[key]) for key, name in found.items() if name is not None]


def check_like(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A tensor of a checkpoint must have the shape of the model's, and an element type that converts to it.

    Raises:
        CheckpointMismatch: it has not.
    """
    if tuple(tensor.shape) != shape:
        raise CheckpointMismatch(
            f"{name!r} has shape {shape} in the checkpoint, {tuple(tensor.shape)} in the model"
        )
    plain = dtype.is_floating_point and dtype.itemsize > 1 and tensor.dtype.is_floating_point
    if dtype is not tensor.dtype and not plain:
        raise CheckpointMismatch(
            f"{name!r} is stored as {dtype} and the model has it in {tensor.dtype}: quantized weights and integers "
            "are not converted. Convert the checkpoint first, or build the model in its element type."
        )


@torch.no_grad()
def write(tensor: Tensor, whole: "Sliceable") -> int:
    """Copy what this rank holds of a tensor from the whole, in the model's element type; returns the bytes read."""
    if not isinstance(tensor, DTensor):
        value: Tensor = whole[...]
        tensor.copy_(value)
        return value.nbytes
    read_bytes = 0
    for chunk in tensor.__create_chunk_list__():  # type: ignore[no-untyped-call]
        part = tensor.__get_tensor_shard__(MetadataIndex("", chunk.offsets))  # type: ignore[no-untyped-call]
        if part.numel():
            ends = (offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=True))
            value = whole[tuple(map(slice, chunk.offsets, ends))]
            part.copy_(value)
            read_bytes += value.nbytes
    return read_bytes


class Sliceable(Protocol):
    """A tensor, or one in a file, of which parts can be taken."""

    def __getitem__(self, index: Any, /) -> Any:  # noqa: ANN401
        """A part as a tensor."""


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield unwrapped_name(name), parameter
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield unwrapped_name(f"{path}.{name}" if path else name), buffer


def _difference(missing: list[str], unexpected: list[str]) -> str:
    said = [
        f"{what} {len(names)}: {', '.join(sorted(names)[:_NUM_NAMED])}{', ..' if len(names) > _NUM_NAMED else ''}"
        for what, names in (("the checkpoint lacks", missing), ("it has others,", unexpected))
        if names
    ]
    return (
        f"{'; '.join(said)}. Give the checkpoint of this model; rename= maps the model's names to those of the "
        "checkpoint, ignore= names what it may have besides."
    )
