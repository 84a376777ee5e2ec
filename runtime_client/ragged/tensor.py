"""A tensor whose flattened elements lie on the ranks in order, so many on each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._pytree import tree_leaves, tree_map

from runtime_client.ragged import private
from runtime_client.ragged.boxes import Box, boxes

aten = torch.ops.aten
_OTHERS = {
    aten.detach.default,
    aten.clone.default,
    aten._to_copy.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    aten.full_like.default,
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.zero_.default,
}
"""Operations that work element by element and are not tagged as such."""
_FUSED = {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"}
_RANDOM = {aten.normal_.default, aten.uniform_.default}
_NORMS = {aten.linalg_vector_norm.default, aten.norm.Scalar}


@dataclass(frozen=True, slots=True)
class Spread:
    """How many elements each rank of the last dimension of a mesh holds; other dimensions hold copies."""

    mesh: DeviceMesh
    sizes: tuple[int, ...]

    @property
    def rank(self) -> int:
        """This rank's place in the last dimension of the mesh."""
        return self.mesh.get_local_rank(self.mesh.ndim - 1)

    @property
    def start(self) -> int:
        """First element of this rank, counted in the flattened tensor."""
        return sum(self.sizes[: self.rank])

    @property
    def num_local(self) -> int:
        """Elements of this rank."""
        return self.sizes[self.rank]

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the local part of a tensor: whole rows where every rank has such, else one dimension."""
        row = prod(shape[1:])
        if row > 0 and all(end % row == 0 for end in accumulate(self.sizes)):
            return self.num_local // row, *shape[1:]
        return (self.num_local,)


class RaggedTensor(DTensor):
    """A tensor of the shape of the whole whose local part is a run of its elements.

    To other code it is a DTensor, sharded on dimension 0 but unevenly. It can do what optimizers and clipping ask
    of a parameter, a gradient or a state: operations element by element, also in lists together with other
    DTensors, and norms, which come out as those of a DTensor do: as parts to be reduced (`.full_tensor()`). `copy_`
    takes whole tensors and other shardings too. Random fills are those of the whole tensor, if all ranks have the
    same seed. torch's distributed checkpoints write and read it, in boxes of the whole. All else is refused.
    """

    spread: Spread

    __torch_function__ = private.NO_TORCH_FUNCTION  # type: ignore[assignment]

    @staticmethod
    def __new__(  # noqa: D102
        cls: type["RaggedTensor"], local: Tensor, spread: Spread, shape: Sequence[int]
    ) -> "RaggedTensor":
        replicas = (Replicate() for _ in range(spread.mesh.ndim - 1))
        made = private.make_dtensor(cls, local, spread.mesh, (*replicas, Shard(0)), shape)
        made.spread = spread
        return made

    def __init__(self, *_: object) -> None:
        """As `__new__`: the local part, how the tensor is spread, and the shape of the whole."""

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return (
            f"RaggedTensor({tuple(self.shape)}, {self.spread.sizes} elements by rank, local {self._local_tensor})"
        )

    def __reduce_ex__(self, _protocol: object) -> tuple[type["RaggedTensor"], tuple[Tensor, Spread, torch.Size]]:
        return RaggedTensor, (self._local_tensor, self.spread, self.shape)

    def to_local(self, **_: object) -> Tensor:
        """What this rank holds: whole rows where every rank has such, else one dimension."""
        return self._local_tensor

    def full_tensor(self, **_: object) -> Tensor:
        """The whole tensor, gathered from all ranks of the last mesh dimension; every rank must call it."""
        width, sizes, mesh = max(self.spread.sizes), self.spread.sizes, self.spread.mesh
        local = self._local_tensor.detach().to(mesh.device_type)
        mine = local.new_zeros(width)
        mine[: local.numel()] = local.reshape(-1)
        gathered = local.new_empty(width * len(sizes))
        private.all_gather(gathered, mine, mesh.get_group(mesh.ndim - 1))
        runs = [gathered[rank * width : rank * width + size] for rank, size in enumerate(sizes)]
        return torch.cat(runs).view(self.shape)

    def redistribute(
        self, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None, **_: object
    ) -> DTensor:
        """As of DTensor, over the same mesh; by way of the whole tensor."""
        mesh = self.spread.mesh
        if device_mesh not in (None, mesh):
            raise NotImplementedError("a ragged tensor on another mesh")
        whole = DTensor.from_local(self.full_tensor(), mesh, [Replicate()] * mesh.ndim, run_check=False)
        return whole.redistribute(placements=placements)

    def boxes(self) -> list[Box]:
        """The boxes of the whole tensor that this rank holds, in order."""
        return list(boxes(self.shape, self.spread.start, self.spread.start + self.spread.num_local))

    def __create_write_items__(self, fqn: str, _object: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self._local_tensor)
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(box.offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=_chunk(box), properties=properties, size=self.size()),
            )
            for box in self.boxes()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(box) for box in self.boxes()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        found = next((box for box in self.boxes() if torch.Size(box.offsets) == index.offset), None)
        if found is None:
            raise ValueError(f"{index.fqn!r}: this rank holds no box at {index.offset}")
        start = found.start - self.spread.start
        return self._local_tensor.detach().view(-1)[start : start + prod(found.sizes)].view(found.sizes)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Spread, torch.Size]]:
        """Names of the tensors inside, for tools that count memory."""
        return ["_local_tensor"], (self.spread, self.shape)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], context: tuple[Spread, torch.Size], _size: object, _stride: object
    ) -> "RaggedTensor":
        return RaggedTensor(inner["_local_tensor"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]  # noqa: ANN001, ANN206
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if func is aten.copy_.default:
            return _copy(args[0], args[1])
        if func is aten.new_empty.default and tuple(args[1]) == tuple(args[0].shape):  # asynchronous checkpoints
            return _elementwise(aten.empty_like.default, args[:1], kwargs)
        if func in _RANDOM:
            return _fill_randomly(func, args, kwargs)
        if func in _NORMS:
            return _norm(func, args, kwargs)
        if name == "_foreach_norm":
            return [aten.linalg_vector_norm.default(x, *args[1:2], **kwargs) for x in args[0]]
        if name.startswith("_foreach_") or name in _FUSED:
            return _in_lists(func, args, kwargs)
        if torch.Tag.pointwise in func.tags or func in _OTHERS:
            return _elementwise(func, args, kwargs)
        shape = tuple(_first_ragged(args, kwargs).shape)
        raise NotImplementedError(
            f"{func} of a ragged tensor of shape {shape}: a rank holds only a run of its elements. Use to_local() "
            "or full_tensor()."
        )


def _copy(target: Tensor, source: Tensor) -> Tensor:
    if isinstance(target, RaggedTensor):
        target._local_tensor.copy_(slice_like(source, target)._local_tensor)
        return target
    whole = source.full_tensor() if isinstance(source, DTensor) else source
    if not isinstance(target, DTensor):
        return target.copy_(whole)
    replicas = [Replicate()] * target.device_mesh.ndim
    return target.copy_(DTensor.from_local(whole, target.device_mesh, replicas, run_check=False))


def slice_like(value: Tensor, like: RaggedTensor) -> RaggedTensor:
    """What `like` holds of a tensor of the same shape, however that is sharded.

    Whole tensors must be the same on every rank; other shardings are gathered first, by every rank.
    """
    if value.shape != like.shape:
        raise ValueError(f"a tensor of shape {tuple(value.shape)} for one of shape {tuple(like.shape)}")
    if isinstance(value, RaggedTensor):
        if value.spread == like.spread:
            return value
        value = value.full_tensor()
    elif isinstance(value, DTensor):
        value = value.full_tensor()
    start = like.spread.start
    local = value.detach().reshape(-1)[start : start + like.spread.num_local]
    return RaggedTensor(local.view(like.spread.local_shape(like.shape)), like.spread, like.shape)


def _elementwise(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    like = _first_ragged(args, kwargs)
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, RaggedTensor):
            fits = leaf.spread == like.spread and leaf.shape == like.shape
        else:
            fits = not isinstance(leaf, Tensor) or leaf.numel() == 1
        if not fits:
            raise ValueError(f"{func} of a ragged tensor of shape {tuple(like.shape)} and one spread otherwise")
    result = func(*tree_map(_local, args), **tree_map(_local, kwargs))
    if _writes(func):
        return args[0]
    return tree_map(lambda x: RaggedTensor(x, like.spread, like.shape) if isinstance(x, Tensor) else x, result)


def _in_lists(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Operations on lists, in which each place may have a ragged tensor, a DTensor or a plain one."""
    result = func(*tree_map(_local, args), **tree_map(_local, kwargs))
    if _writes(func) or result is None:
        return result
    if any(made.shape != _local(like).shape for made, like in zip(result, args[0], strict=True)):
        raise NotImplementedError(f"{func} of ragged tensors, whose elements lie on several ranks")
    return [_wrap_like(made, like) for made, like in zip(result, args[0], strict=True)]


def _fill_randomly(func: Any, args: Any, kwargs: Any) -> RaggedTensor:  # noqa: ANN401
    """Fill the whole as an unsharded run would, and keep the own part; copies of other mesh dimensions agree."""
    target, *rest = args
    whole = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    _copy(target, func(whole, *rest, **kwargs))
    for dim in range(target.device_mesh.ndim - 1):
        dist.broadcast(target._local_tensor, group=target.device_mesh.get_group(dim), group_src=0)
    return cast(RaggedTensor, target)


def _wrap_like(local: Tensor, like: Tensor) -> Tensor:
    if isinstance(like, RaggedTensor):
        return RaggedTensor(local, like.spread, like.shape)
    if isinstance(like, DTensor):
        return private.make_dtensor(DTensor, local, like.device_mesh, like.placements, like.shape)
    return local


def _local(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, RaggedTensor):
        return value._local_tensor
    if isinstance(value, DTensor):
        return value.full_tensor() if value.ndim == 0 else private.local_of(value)
    return value


def _norm(func: Any, args: Any, kwargs: Any) -> DTensor:  # noqa: ANN401
    """The norm over all elements, as a DTensor that is still to be reduced over the ranks."""
    tensor, order = args[0], args[1] if len(args) > 1 else 2.0
    if any(value is not None and value is not False for value in args[2:]) or kwargs.get("dim") is not None:
        raise NotImplementedError(f"{func} of a ragged tensor over some dimensions")
    local = tensor._local_tensor
    dtype = kwargs.get("dtype")
    if abs(order) == inf and not local.numel():
        part = local.new_zeros((), dtype=dtype or local.dtype)
    else:
        part = torch.linalg.vector_norm(local, order, dtype=dtype)
    mesh = tensor.device_mesh
    placements = (*(Replicate() for _ in range(mesh.ndim - 1)), private.part_of_norm(order))
    return DTensor.from_local(part, mesh, placements, run_check=False)


def _writes(func: Any) -> bool:  # noqa: ANN401
    first = func._schema.arguments[0]
    return first.alias_info is not None and bool(first.alias_info.is_write)


def _first_ragged(args: Any, kwargs: Any) -> RaggedTensor:  # noqa: ANN401
    return next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, RaggedTensor))


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))


private.allow_in_lists(RaggedTensor)
