"""Bytes of a unit on one rank; the letters are those of docs/model.md."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from planner.program.units import Partition, Unit, resolve
from planner.schema import DType, InconsistentRequest, Layout, Parameter, Precision

_FLOATING = {dtype for dtype in DType if "float" in dtype}

_AVERAGED = {DType.FLOAT32, DType.BFLOAT16}
"""Element types that communicators average without a division of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What FSDP2 takes for one parameter of a unit: a parameter, or a ragged buffer of several."""

    stored: int
    """Shard in the storage dtype."""
    gathered: int
    """Padded unsharded parameter in the gather dtype."""
    cast: int
    """Shard in the gather dtype where that differs from the storage dtype."""
    gradient: int
    """Full-size gradient in the gather dtype; 0 when there is none."""
    whole_gradient: int
    """The same in the reduce dtype."""
    zeros: int
    """Gradient of zeros that stands for one that autograd did not make."""
    dim: int
    """Dimension that is sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBytes:
    """Sizes of a unit."""

    pieces: tuple[Piece, ...]
    """In the order of registration."""
    stored: int
    """S: shards in the storage dtype."""
    gathered: int
    """P: padded unsharded parameters in the gather dtype."""
    cast: int
    """C: shards in the gather dtype where that differs from the storage dtype; alive while the gather is issued."""
    gradients: int
    """G: full-size gradients."""
    zero_gradients: int
    """Gradients of zeros that stand for those that autograd did not make; part of R, not of G."""
    whole_gradients: int
    """Gq: full-size gradients in the reduce dtype."""
    reduce_input: int
    """R: padded gradients in the reduce dtype."""
    reduce_output: int
    """Q: R over the shard degree."""
    sharded_gradients: int
    """D: gradient shards in the storage dtype."""
    casts: bool
    """The reduce dtype differs from the storage dtype."""
    accumulates_apart: bool
    """Without synchronisation gradients are kept in a reduce dtype that differs from theirs."""
    divides: bool
    """FSDP2 divides before and after the reduction: element types in which a sum may overflow, and rare ones."""

    def largest_casts(self, *, from_host: bool = False) -> tuple[int, int]:
        """With one rank: (unsharded bytes, other bytes) alive at the worst moment of making parameters one by one.

        Each parameter is fetched (from the host), cast, then its unsharded storage is allocated; what was fetched
        lives until it is cast, and what was made last until the next one is.
        """
        worst = (0, 0)
        unsharded = previous = 0
        for piece in self.pieces:
            fetched = piece.stored if from_host else 0
            made = piece.cast or fetched
            for moment in (
                (unsharded, previous + fetched + piece.cast),
                (unsharded + piece.gathered, made),
            ):
                if sum(moment) > sum(worst):
                    worst = moment
            unsharded, previous = unsharded + piece.gathered, made
        return worst

    @property
    def other_dims(self) -> int:
        """Gathered bytes of parameters that are sharded on another dimension than the first."""
        return sum(piece.gathered for piece in self.pieces if piece.dim)

    def other_dim_gradients(self, *, whole: bool) -> tuple[int, int, int]:
        """Gradients of those parameters (`whole`: in the reduce dtype): all of them, the largest, the last."""
        made = [
            (piece.whole_gradient if whole else piece.gradient) or piece.zeros for piece in self.pieces if piece.dim
        ]
        sizes = [size for size in made if size]
        return sum(sizes), max(sizes, default=0), sizes[-1] if sizes else 0

    def last_gradient(self, *, whole: bool) -> int:
        """The last gradient of those that are reduced; 0 where it is rearranged, and counted with those."""
        for piece in reversed(self.pieces):
            size = (piece.whole_gradient if whole else piece.gradient) or piece.zeros
            if size:
                return 0 if piece.dim else size
        return 0

    def clone_peak(self, ranks: int) -> int:
        """Most bytes above P while gathered parameters are replaced, one by one, by a share of `ranks` ranks."""
        return _replacement_peak([(piece.gathered, piece.gathered // ranks) for piece in self.pieces])

    def partial_cast(self, ranks: int) -> int:
        """Copies that a gather over `ranks` ranks makes of what partial resharding left."""
        return sum(piece.gathered // ranks for piece in self.pieces if piece.cast)

    @property
    def accumulation_peak(self) -> int:
        """Most bytes above G while gradients are replaced, one by one, by copies in the reduce dtype."""
        return _replacement_peak([(piece.gradient, piece.whole_gradient) for piece in self.pieces])

    @property
    def device_copies(self) -> tuple[int, int]:
        """Of shards on the host: (most bytes while they are copied and cast one by one, bytes in the end)."""
        kept = peak = 0
        for piece in self.pieces:
            peak = max(peak, kept + piece.stored + piece.cast)
            kept += piece.cast or piece.stored
        return peak, kept


def _replacement_peak(pairs: Sequence[tuple[int, int]]) -> int:
    """Most bytes above the start when each (old, new) allocates the new and then frees the old."""
    level = peak = 0
    for old, new in pairs:
        peak = max(peak, level + new)
        level += new - old
    return peak


def unit_bytes(
    unit: Unit,
    *,
    shard: int,
    precision: Precision,
    with_gradient: Collection[str],
    with_zeros: Collection[str] = (),
    dims: Mapping[str, int] | None = None,
    layouts: Sequence[Layout] = (),
) -> UnitBytes:
    """Sizes of a unit when sharded over `shard` ranks.

    Args:
        unit: its parameters.
        shard: ranks of the shard axis.
        precision: element types.
        with_gradient: names of parameters that get a gradient.
        with_zeros: names of parameters that are reduced as zeros when they have none.
        dims: dimension that a parameter is sharded on, where that is not the first.
        layouts: ragged buffers that hold the parameters; none where each is cut evenly.

    Raises:
        InconsistentRequest: a parameter does not divide evenly on another dimension than the first.
    """
    pieces: list[Piece] = []
    reduce_input = sharded_gradients = 0
    casts = apart = divides = False
    for members, local, dim in _flats(unit, shard, dims or {}, layouts):
        parameter = members[0][1]
        gather_dtype = gather_dtype_of(parameter, precision)
        reduce_dtype = precision.reduce_dtype or gather_dtype
        elements = sum(one.num_elements for name, one in members if name in with_gradient)
        has_zeros = any(name in with_zeros for name, _ in members) and not elements
        zero_elements = 0
        if has_zeros:
            zero_elements = shard * local if layouts else parameter.num_elements
        pieces.append(
            Piece(
                stored=local * parameter.dtype.itemsize_bytes,
                gathered=shard * local * gather_dtype.itemsize_bytes,
                cast=local * gather_dtype.itemsize_bytes if gather_dtype != parameter.dtype else 0,
                gradient=elements * gather_dtype.itemsize_bytes,
                whole_gradient=elements * reduce_dtype.itemsize_bytes,
                zeros=zero_elements * gather_dtype.itemsize_bytes,
                dim=dim,
            )
        )
        has_gradient = any(name in with_gradient for name, _ in members)
        if not (has_gradient or has_zeros):
            continue
        reduce_input += shard * local * reduce_dtype.itemsize_bytes
        sharded_gradients += local * parameter.dtype.itemsize_bytes
        casts = casts or reduce_dtype != parameter.dtype
        apart = apart or (has_gradient and reduce_dtype != gather_dtype)
        divides = divides or reduce_dtype not in _AVERAGED
    return UnitBytes(
        pieces=tuple(pieces),
        stored=sum(piece.stored for piece in pieces),
        gathered=sum(piece.gathered for piece in pieces),
        cast=sum(piece.cast for piece in pieces),
        gradients=sum(piece.gradient for piece in pieces),
        zero_gradients=sum(piece.zeros for piece in pieces),
        whole_gradients=sum(piece.whole_gradient for piece in pieces),
        reduce_input=reduce_input,
        reduce_output=reduce_input // shard,
        sharded_gradients=sharded_gradients,
        casts=casts,
        accumulates_apart=apart,
        divides=divides,
    )


def _flats(
    unit: Unit, shard: int, dims: Mapping[str, int], layouts: Sequence[Layout]
) -> Iterator[tuple[list[tuple[str, Parameter]], int, int]]:
    """What FSDP2 takes for parameters: (members, elements of a shard, dimension that is sharded)."""
    if layouts:
        owned = dict(unit.parameters)
        for layout in layouts:
            names = [entry.parameter for entry in layout.entries]
            yield [(name, owned[name]) for name in names], layout.shard_elements, 0
        return
    for name, parameter in unit.parameters:
        dim = dims.get(name, 0)
        yield [(name, parameter)], shard_elements(parameter, shard, dim, name), dim


def shard_elements(parameter: Parameter, shard: int, dim: int = 0, name: str = "") -> int:
    """Elements on rank 0 after `torch.chunk` of a dimension into `shard` chunks.

    Raises:
        InconsistentRequest: `dim` is not 0 and does not divide evenly, which FSDP2 refuses.
    """
    if not parameter.shape:
        return 1
    if dim == 0:
        return ceil(parameter.shape[0] / shard) * prod(parameter.shape[1:])
    if dim >= len(parameter.shape) or parameter.shape[dim] % shard:
        raise InconsistentRequest(
            f"decisions.shard_dims: {name!r} of shape {list(parameter.shape)} cannot be sharded on dimension {dim} "
            f"over {shard} ranks; only dimension 0 may divide unevenly"
        )
    return parameter.num_elements // shard


def gradient_bytes(parts: Partition, precision: Precision) -> list[list[int]]:
    """Bytes of each gradient of each call, in its `gradient_order`; a parameter's where backward makes it first.

    What further uses of a parameter contribute is added to that, and autograd delivers the sum after the last.
    """
    model = parts.model
    parameters = dict(model.iter_parameters())
    ties = {name: parameter.tied_to or name for name, parameter in parameters.items()}
    met = parameters.keys() - parts.with_gradient
    sizes: list[list[int]] = []
    for call in reversed(model.calls):
        names = [resolve(ties, call.path, name) for name in model.kinds[call.kind].gradient_order]
        sizes.append([0 if name in met else _gradient_bytes(parameters[name], precision) for name in names])
        met.update(names)
    return sizes[::-1]


def gradient_deliveries(parts: Partition) -> list[list[int]]:
    """Of each gradient of each call, the call in whose backward autograd delivers it: the first that uses the
    parameter in forward.
    """
    model = parts.model
    ties = {name: parameter.tied_to or name for name, parameter in model.iter_parameters()}
    first: dict[str, int] = {}
    names = [
        [resolve(ties, call.path, name) for name in model.kinds[call.kind].gradient_order]
        if model.kinds[call.kind].output_requires_grad
        else []
        for call in model.calls
    ]
    for index, used in enumerate(names):
        for name in used:
            first.setdefault(name, index)
    return [[first[name] for name in used] for used in names]


def _gradient_bytes(parameter: Parameter, precision: Precision) -> int:
    return parameter.num_elements * gather_dtype_of(parameter, precision).itemsize_bytes


def gather_dtype_of(parameter: Parameter, precision: Precision) -> DType:
    """Element type of the gathered parameter, and of its gradient."""
    if precision.param_dtype is not None and parameter.dtype in _FLOATING:
        return precision.param_dtype
    return parameter.dtype
