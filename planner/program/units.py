"""Units of a model: which parameters each holds, which calls each runs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.program.parts import ExpandedBlock
from planner.schema import (
    LOSS_PATH,
    OUTPUT_PATH,
    CallRole,
    InconsistentRequest,
    Layout,
    ModelDescription,
    Parameter,
)
from planner.schema.module_paths import modules_above

ROOT = 0
"""Index of the root unit: units are numbered in registration order, the root first."""


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
    """One run of a non-root unit: calls `first` to `last`, both included, those of inner units among them."""

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
    """In the order in which they begin, outer ones first."""
    with_gradient: frozenset[str]
    """Full (untied) names of parameters that get a gradient."""
    blocks: tuple[ExpandedBlock, ...] = ()
    """Blocks whose call was replaced by its parts."""
    with_zeros: frozenset[str] = frozenset()
    """Of the other trainable ones, those that are reduced as zeros."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Dimension that a parameter is sharded on, where that is not the first."""
    layouts: Mapping[int, tuple[Layout, ...]] = field(default_factory=dict)
    """Ragged buffers of a unit, in the order of its `fully_shard`; units without any are cut evenly."""

    @property
    def loss_call(self) -> int | None:
        """Index of the loss call, which runs after the root's forward."""
        return self._index_of(LOSS_PATH)

    @property
    def output_cast(self) -> int | None:
        """Index of the cast of the root's output, the last thing that its forward hooks do."""
        return self._index_of(OUTPUT_PATH)

    def _index_of(self, path: str) -> int | None:
        """Of the last two calls the one with this path."""
        last = range(len(self.model.calls))[-2:]
        return next((index for index in last if self.model.calls[index].path == path), None)

    def has_backward(self, run: Pass) -> bool:
        """Whether anything in a pass has one: its output requires grad."""
        return self.model.kinds[self.model.calls[run.last].kind].output_requires_grad

    @property
    def with_backward(self) -> frozenset[int]:
        """Units that run in backward, the root among them."""
        return frozenset({ROOT, *(run.unit for run in self.passes if self.has_backward(run))})

    @property
    def passes_by_end(self) -> tuple[Pass, ...]:
        """In the order in which they end, inner ones first: the order of FSDP2's post-forward hooks."""
        place = {id(run): index for index, run in enumerate(self.passes)}
        return tuple(sorted(self.passes, key=lambda run: (run.last, -place[id(run)])))


def contains(module: str, path: str) -> bool:
    """Whether `path` is `module` or lies below it."""
    return not module or path == module or path.startswith(module + ".")


def partition(
    model: ModelDescription, unit_modules: Sequence[tuple[str, ...]], blocks: tuple[ExpandedBlock, ...] = ()
) -> Partition:
    """Split a model into units.

    Args:
        model: the description, blocks with units inside them replaced by their parts.
        unit_modules: modules of every unit but the root, in any order.
        blocks: the blocks that were replaced.

    Raises:
        InconsistentRequest: a unit that does not exist or overlaps another, a tie over two units, or a group
            of modules of which one runs several times.
    """
    first = _first_parameters(model)
    ordered = sorted(unit_modules, key=lambda modules: _registration(modules, first))
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
    return Partition(
        model=model,
        units=tuple(
            Unit(modules=modules, parameters=tuple(parameters))
            for modules, parameters in zip([("",), *ordered], units, strict=True)
        ),
        unit_of_call=tuple(_unit_of(call.path, owners) for call in model.calls),
        passes=_passes(model, [("",), *ordered], owners, blocks),
        with_gradient=names_with_gradient(model),
        blocks=blocks,
    )


def names_with_gradient(model: ModelDescription) -> frozenset[str]:
    """Full names of the parameters that some call gives a gradient, by their first (untied) name."""
    parameters = model.iter_parameters()
    ties = {name: parameter.tied_to or name for name, parameter in parameters}
    trainable = {name for name, parameter in parameters if parameter.requires_grad}
    reached: set[str] = set()
    for call in model.calls:
        kind = model.kinds[call.kind]
        if kind.output_requires_grad:
            reached.update(resolve(ties, call.path, name) for name in kind.gradient_order)
    return frozenset(reached & trainable)


def unused_parameters(parts: Partition) -> frozenset[str]:
    """Trainable parameters without a gradient, of units that run: FSDP2 makes zeros for these alone."""
    running = {ROOT, *(run.unit for run in parts.passes)}
    return frozenset(
        name
        for unit in running
        for name, parameter in parts.units[unit].parameters
        if parameter.requires_grad and name not in parts.with_gradient
    )


def resolve(ties: dict[str, str], path: str, name: str) -> str:
    """Untied full name of `name` as seen from the call at `path`."""
    relative = f"{path}.{name}" if path else name
    return ties[relative] if relative in ties else ties.get(name, name)


def _first_parameters(model: ModelDescription) -> dict[str, int]:
    """Place of the first parameter at or below each module."""
    places: dict[str, int] = {}
    for index, (name, _) in enumerate(model.iter_parameters()):
        for module in modules_above(name):
            places.setdefault(module, index)
    return places


def _registration(modules: tuple[str, ...], places: dict[str, int]) -> tuple[int, int]:
    """Place of the first parameter; of units that share it the outer one comes first."""
    found = [places[module] for module in modules if module in places]
    if not found or "" in modules:
        raise InconsistentRequest(
            f"unit {', '.join(modules) or '(root)'!r} names no module with parameters; "
            "units are module paths of the description, and the root is implied"
        )
    return min(found), _depth(modules)


def _owners(ordered: Sequence[tuple[str, ...]]) -> dict[str, int]:
    owners: dict[str, int] = {}
    for index, modules in enumerate(ordered, start=1):
        for module in modules:
            if module in owners:
                raise InconsistentRequest(f"module {module!r} is listed in two units; list it once")
            owners[module] = index
    return owners


def _unit_of(path: str, owners: dict[str, int]) -> int:
    return next(_units_around(path, owners), ROOT)


def _units_around(path: str, owners: dict[str, int]) -> Iterator[int]:
    """Units that a module or parameter lies in but the root, the innermost first."""
    return (owners[module] for module in (path, *modules_above(path)) if module in owners)


def _passes(
    model: ModelDescription,
    modules: Sequence[tuple[str, ...]],
    owners: dict[str, int],
    blocks: Sequence[ExpandedBlock],
) -> tuple[Pass, ...]:
    inside: dict[int, list[int]] = {}
    for index, call in enumerate(model.calls):
        for unit in dict.fromkeys(_units_around(call.path, owners)):
            inside.setdefault(unit, []).append(index)
    passes = [
        Pass(unit=unit, first=calls[0], last=calls[-1])
        for unit, indices in inside.items()
        for calls in _runs(model, modules[unit], indices, blocks)
    ]
    return tuple(sorted(passes, key=lambda run: (run.first, -run.last, _depth(modules[run.unit]))))


def _depth(modules: tuple[str, ...]) -> int:
    return min(module.count(".") for module in modules)


def _runs(
    model: ModelDescription, modules: tuple[str, ...], calls: Sequence[int], blocks: Sequence[ExpandedBlock]
) -> list[list[int]]:
    """Calls of each run of a unit.

    A module that is one call runs as often as it is called, one in a replaced block as often as that is.
    Any other unit runs once.
    """
    own = [index for index in calls if model.kinds[model.calls[index].kind].role is not CallRole.GLUE]
    repeated = [path for path, num in Counter(model.calls[index].path for index in own).items() if num > 1]
    if not repeated:
        return [list(calls)]
    runs: dict[int, list[int]] = {}
    if len(modules) == 1:
        holders = [block for block in blocks if contains(block.path, modules[0])]
        for index in calls:
            starts = [block.first for block in holders if block.first <= index <= block.last]
            is_call = index in own and model.calls[index].path == modules[0]
            runs.setdefault(starts[-1] if starts else index if is_call else -1, []).append(index)
    if not runs or -1 in runs:
        raise InconsistentRequest(
            f"module {repeated[0]!r} runs more than once in a forward, but shares the unit {list(modules)} with "
            "other calls; make it a unit of its own or leave it to the root unit"
        )
    return list(runs.values())
