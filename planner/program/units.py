"""Units of a model: which parameters, which calls, how many bytes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

from planner.schema import (
    LOSS_PATH,
    DType,
    InconsistentRequest,
    ModelDescription,
    Parameter,
    Precision,
)

ROOT = 0
"""Index of the root unit: units are numbered in registration order, the root first."""
_FLOATING = {
    DType.FLOAT64,
    DType.FLOAT32,
    DType.BFLOAT16,
    DType.FLOAT16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One `fully_shard` call: its modules and its own parameters (tied copies left out)."""

    modules: tuple[str, ...]
    parameters: tuple[tuple[str, Parameter], ...]

    @property
    def name(self) -> str:
        """First module; `(root)` for the root."""
        return ", ".join(self.modules) or "(root)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One run of a non-root unit: calls `first` to `last`, both included."""

    unit: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Units of a model and the calls they run. `units[0]` is the root."""

    model: ModelDescription
    units: tuple[Unit, ...]
    unit_of_call: tuple[int, ...]
    passes: tuple[Pass, ...]

    @property
    def loss_call(self) -> int | None:
        """Index of the loss call, which runs after the root's forward."""
        last = len(self.model.calls) - 1
        return last if last >= 0 and self.model.calls[last].path == LOSS_PATH else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBytes:
    """Sizes of a unit on one rank; the letters are those of docs/model.md."""

    stored: int
    """S: shards in the storage dtype."""
    gathered: int
    """P: padded unsharded parameters in the gather dtype."""
    cast: int
    """C: shards in the gather dtype where that differs from the storage dtype; alive while the gather is issued."""
    largest_casts: tuple[int, int]
    """With one rank: (unsharded bytes, cast bytes) alive at the worst moment of casting parameter by parameter."""
    gradients: int
    """G: full-size gradients."""
    reduce_input: int
    """R: padded gradients in the reduce dtype."""
    reduce_output: int
    """Q: R over the shard degree."""
    sharded_gradients: int
    """D: gradient shards in the storage dtype."""
    casts: bool
    """The reduce dtype differs from the storage dtype."""


def contains(module: str, path: str) -> bool:
    """Whether `path` is `module` or lies below it."""
    return not module or path == module or path.startswith(module + ".")


def partition(model: ModelDescription, unit_modules: Sequence[tuple[str, ...]]) -> Partition:
    """Split a model into units.

    Args:
        model: the description.
        unit_modules: modules of every unit but the root, in any order.

    Raises:
        InconsistentRequest: a unit that does not exist, overlaps another, holds part of a tie or runs twice.
    """
    order = {module.path: index for index, module in enumerate(model.modules)}
    ordered = sorted(unit_modules, key=lambda modules: _registration_index(modules, order))
    owners = _owners(ordered)
    units: list[list[tuple[str, Parameter]]] = [[] for _ in range(len(ordered) + 1)]
    home: dict[str, int] = {}
    for name, parameter in model.iter_parameters():
        unit = _unit_of(name, owners)
        home[name] = unit
        if parameter.tied_to is None:
            units[unit].append((name, parameter))
        elif home[parameter.tied_to] != unit:
            raise InconsistentRequest(
                f"parameters {name!r} and {parameter.tied_to!r} are tied but lie in different units; "
                "put both modules into one unit or leave both to the root"
            )
    unit_of_call = tuple(_unit_of(call.path, owners) for call in model.calls)
    return Partition(
        model=model,
        units=tuple(
            Unit(modules=modules, parameters=tuple(parameters))
            for modules, parameters in zip([("",), *ordered], units, strict=True)
        ),
        unit_of_call=unit_of_call,
        passes=_passes(model, [("",), *ordered], unit_of_call),
    )


def unit_bytes(unit: Unit, *, shard: int, precision: Precision, with_gradient: set[str]) -> UnitBytes:
    """Sizes of a unit when sharded over `shard` ranks; `with_gradient` names parameters that get one."""
    stored = gathered = cast = gradients = reduce_input = sharded_gradients = 0
    casts = False
    pieces: list[tuple[int, int]] = []
    for name, parameter in unit.parameters:
        local = shard_elements(parameter, shard)
        gather_dtype = _gather_dtype(parameter, precision)
        stored += local * parameter.dtype.itemsize_bytes
        piece = local * gather_dtype.itemsize_bytes
        gathered += shard * piece
        cast += piece if gather_dtype != parameter.dtype else 0
        pieces.append((piece, piece if gather_dtype != parameter.dtype else 0))
        if name not in with_gradient:
            continue
        reduce_dtype = precision.reduce_dtype or gather_dtype
        gradients += parameter.num_elements * gather_dtype.itemsize_bytes
        reduce_input += shard * local * reduce_dtype.itemsize_bytes
        sharded_gradients += local * parameter.dtype.itemsize_bytes
        casts = casts or reduce_dtype != parameter.dtype
    return UnitBytes(
        stored=stored,
        gathered=gathered,
        cast=cast,
        largest_casts=_largest_casts(pieces),
        gradients=gradients,
        reduce_input=reduce_input,
        reduce_output=reduce_input // shard,
        sharded_gradients=sharded_gradients,
        casts=casts,
    )


def _largest_casts(pieces: list[tuple[int, int]]) -> tuple[int, int]:
    """Each parameter is cast, then its unsharded storage allocated; a cast lives until the next one is made."""
    worst = (0, 0)
    unsharded = previous = 0
    for whole, cast in pieces:
        for moment in ((unsharded, previous + cast), (unsharded + whole, cast)):
            if sum(moment) > sum(worst):
                worst = moment
        unsharded, previous = unsharded + whole, cast
    return worst


def shard_elements(parameter: Parameter, shard: int) -> int:
    """Elements on rank 0 after `torch.chunk` of dimension 0 into `shard` chunks."""
    if not parameter.shape:
        return 1
    return ceil(parameter.shape[0] / shard) * prod(parameter.shape[1:])


def names_with_gradient(model: ModelDescription) -> set[str]:
    """Full names of the parameters that some call gives a gradient, by their first (untied) name."""
    ties = {name: parameter.tied_to or name for name, parameter in model.iter_parameters()}
    trainable = {name for name, parameter in model.iter_parameters() if parameter.requires_grad}
    reached: set[str] = set()
    for call in model.calls:
        kind = model.kinds[call.kind]
        if kind.output_requires_grad:
            reached.update(resolve(ties, call.path, name) for name in kind.gradient_order)
    return reached & trainable


def resolve(ties: dict[str, str], path: str, name: str) -> str:
    """Untied full name of `name` as seen from the call at `path`."""
    relative = f"{path}.{name}" if path else name
    return ties[relative] if relative in ties else ties.get(name, name)


def gradient_bytes(model: ModelDescription, precision: Precision) -> list[list[int]]:
    """Bytes of each gradient of each call, in its `gradient_order`; tied ones at their first in backward."""
    parameters = dict(model.iter_parameters())
    ties = {name: parameter.tied_to or name for name, parameter in parameters.items()}
    met = parameters.keys() - names_with_gradient(model)
    sizes: list[list[int]] = []
    for call in reversed(model.calls):
        names = [resolve(ties, call.path, name) for name in model.kinds[call.kind].gradient_order]
        sizes.append([0 if name in met else _gradient_bytes(parameters[name], precision) for name in names])
        met.update(names)
    return sizes[::-1]


def _gradient_bytes(parameter: Parameter, precision: Precision) -> int:
    return parameter.num_elements * _gather_dtype(parameter, precision).itemsize_bytes


def _gather_dtype(parameter: Parameter, precision: Precision) -> DType:
    if precision.param_dtype is not None and parameter.dtype in _FLOATING:
        return precision.param_dtype
    return parameter.dtype


def _registration_index(modules: tuple[str, ...], order: dict[str, int]) -> int:
    found = [index for path, index in order.items() if any(contains(module, path) for module in modules)]
    if not found or "" in modules:
        raise InconsistentRequest(
            f"unit {', '.join(modules) or '(root)'!r} names no module with parameters; "
            "units are module paths of the description, and the root is implied"
        )
    return min(found)


def _owners(ordered: Sequence[tuple[str, ...]]) -> dict[str, int]:
    owners: dict[str, int] = {}
    for index, modules in enumerate(ordered, start=1):
        for module in modules:
            if module in owners:
                raise InconsistentRequest(f"module {module!r} is listed in two units; list it once")
            owners[module] = index
    return owners


def _unit_of(path: str, owners: dict[str, int]) -> int:
    prefix = path
    while prefix:
        if prefix in owners:
            return owners[prefix]
        prefix = prefix.rpartition(".")[0]
    return ROOT


def _passes(
    model: ModelDescription, modules: Sequence[tuple[str, ...]], unit_of_call: tuple[int, ...]
) -> tuple[Pass, ...]:
    calls_of: dict[int, list[int]] = defaultdict(list)
    for index, unit in enumerate(unit_of_call):
        if unit != ROOT:
            calls_of[unit].append(index)
    passes = [Pass(unit=unit, first=calls[0], last=calls[-1]) for unit, calls in calls_of.items()]
    passes.sort(key=lambda item: item.first)
    for earlier, later in pairwise(passes):
        if later.first <= earlier.last:
            raise InconsistentRequest(
                f"units {modules[earlier.unit]} and {modules[later.unit]} run inside each other; "
                "nested units are not modelled yet"
            )
    seen: dict[tuple[int, str], int] = {}
    for index, call in enumerate(model.calls):
        unit = unit_of_call[index]
        previous = seen.get((unit, call.path))
        if unit != ROOT and previous is not None and call.path in modules[unit]:
            raise InconsistentRequest(
                f"module {call.path!r} runs more than once in a forward (calls {previous} and {index}); "
                "leave it to the root unit"
            )
        seen[(unit, call.path)] = index
    return tuple(passes)
