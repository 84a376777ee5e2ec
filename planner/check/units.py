"""Which parameters each unit owns and when it runs, and the bytes that follow from them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.check.parts import PlannedCall
from planner.check.passes import Pass, module_depth, module_runs, unit_passes
from planner.schema.base import DType
from planner.schema.decisions import (
    Decisions,
    Layout,
    MeshPlan,
    UnitPlan,
)
from planner.schema.model import ModelDescription, Parameter, StateTier

_FLOATING = {name for name in DType if "float" in name}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedParameter:
    """One parameter under even sharding, as rank 0 (the fullest) sees it."""

    name: str
    dim: int
    """Dimension that is sharded."""
    shard_elements: int
    num_elements: int
    storage: DType
    gathered: DType
    reduced: DType
    requires_grad: bool

    @classmethod
    def of(cls, name: str, parameter: Parameter, shard: int, decisions: Decisions) -> "ShardedParameter":
        """Apply shard degree, sharded dimension and mixed-precision policy to a parameter.

        Dimension 0 is padded to a multiple of the shard degree, another one must be a multiple.
        """
        dim = next((item.dim for item in decisions.shard_dims if item.parameter == name), 0)
        storage = parameter.dtype
        gathered = decisions.param_dtype if decisions.param_dtype and storage in _FLOATING else storage
        size = parameter.shape[dim] if dim < len(parameter.shape) else 1
        per_rank = -(-size // shard)
        return cls(
            name=name,
            dim=dim,
            shard_elements=per_rank * (parameter.num_elements // size) if size else 0,
            num_elements=parameter.num_elements,
            storage=storage,
            gathered=gathered,
            reduced=decisions.reduce_dtype or gathered,
            requires_grad=parameter.requires_grad,
        )

    @property
    def stored_bytes(self) -> int:
        """Shard in the storage dtype; a sharded gradient takes as much."""
        return self.shard_elements * self.storage.itemsize_bytes

    @property
    def gather_input_bytes(self) -> int:
        """What this rank sends in an all-gather."""
        return self.shard_elements * self.gathered.itemsize_bytes

    @property
    def cast_bytes(self) -> int:
        """Temporary copy of the shard where gathering changes its dtype."""
        return 0 if self.gathered is self.storage else self.gather_input_bytes

    @property
    def gradient_bytes(self) -> int:
        """Full gradient as autograd makes it."""
        return self.num_elements * self.gathered.itemsize_bytes

    @property
    def accumulated_bytes(self) -> int:
        """Full gradient in the element type of the reduction."""
        return self.num_elements * self.reduced.itemsize_bytes

    @property
    def reduce_output_bytes(self) -> int:
        """What this rank receives from a reduce-scatter."""
        return self.shard_elements * self.reduced.itemsize_bytes


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit of the plan with what it owns."""

    plan: UnitPlan
    mesh: MeshPlan
    parameters: tuple[ShardedParameter, ...]
    flats: tuple[ShardedParameter, ...]
    """What FSDP2 takes for the parameters: those themselves, or the ragged buffers that hold them."""
    flat_of: Mapping[str, ShardedParameter]
    """By the name of each parameter."""
    passes: tuple[Pass, ...]
    """Empty for the root, which runs from the first call to the last, and for units that never run."""
    ends_complete: bool
    """Whether all of its modules have run in its last pass."""
    registration: tuple[int, int]
    """Sorts units as `named_modules()` meets them."""

    @property
    def is_root(self) -> bool:
        """Whether this is the unit of the root module."""
        return self.plan.modules == ("",)

    @property
    def runs(self) -> bool:
        """Whether its hooks fire in a forward at all."""
        return self.is_root or bool(self.passes)

    @property
    def is_on_host(self) -> bool:
        """Whether shards, sharded gradients and optimizer state are in host memory."""
        return self.plan.parameter_tier is StateTier.HOST

    @property
    def is_state_away(self) -> bool:
        """Whether optimizer state is on the host or on NVMe, and shards and gradients on the device."""
        return self.plan.parameter_tier is not self.plan.optimizer_tier

    @property
    def name(self) -> str:
        """First module; the name that prefetch lists use."""
        return self.plan.modules[0]

    @property
    def title(self) -> str:
        """How messages call the unit."""
        return "the root unit" if self.is_root else f"unit {self.name!r}"

    @cached_property
    def gather_input_bytes(self) -> int:
        """What this rank sends when the unit is gathered."""
        return sum(flat.gather_input_bytes for flat in self.flats)

    @cached_property
    def stored_bytes(self) -> int:
        """Shards in their storage dtypes."""
        return sum(flat.stored_bytes for flat in self.flats)


def module_owners(units: Iterable[UnitPlan]) -> dict[str, int]:
    """Index of the first unit that lists each module."""
    owners: dict[str, int] = {}
    for index, unit in enumerate(units):
        for module in unit.modules:
            owners.setdefault(module, index)
    return owners


def owner(path: str, owners: Mapping[str, int]) -> int | None:
    """Index of the unit with the longest module that is a prefix of the path."""
    module = path
    while module and module not in owners:
        module = module.rpartition(".")[0]
    return owners.get(module)


def build_units(model: ModelDescription, decisions: Decisions, calls: Sequence[PlannedCall]) -> tuple[Unit, ...]:
    """The units in the order of the plan."""
    owners = module_owners(decisions.units)
    owned: dict[int, list[ShardedParameter]] = {}
    places: dict[str, int] = {}
    for place, (name, parameter) in enumerate(model.iter_parameters()):
        places |= {module: places.get(module, place) for module in _modules_above(name)}
        index = owner(name, owners)
        if parameter.tied_to is None and index is not None:
            shard = decisions.mesh_of(decisions.units[index]).shard
            owned.setdefault(index, []).append(ShardedParameter.of(name, parameter, shard, decisions))
    units = []
    for index, plan in enumerate(decisions.units):
        runs = [run for module in plan.modules if module for run in module_runs(model, calls, module)]
        passes, ends_complete = unit_passes(runs, plan.modules)
        parameters = tuple(owned.get(index, ()))
        if plan.layouts:
            parameters, flats, flat_of = _in_layouts(parameters, plan, decisions)
        else:
            flats, flat_of = parameters, {parameter.name: parameter for parameter in parameters}
        units.append(
            Unit(
                plan=plan,
                mesh=decisions.mesh_of(plan),
                parameters=parameters,
                flats=flats,
                flat_of=flat_of,
                passes=passes,
                ends_complete=ends_complete,
                registration=min((places.get(m, len(places)), module_depth(m)) for m in plan.modules),
            )
        )
    return tuple(units)


def _in_layouts(
    parameters: Sequence[ShardedParameter], plan: UnitPlan, decisions: Decisions
) -> tuple[tuple[ShardedParameter, ...], tuple[ShardedParameter, ...], dict[str, ShardedParameter]]:
    """Parameters of a ragged unit with what their fullest rank holds, its buffers, and the buffer of each."""
    known = {parameter.name: parameter for parameter in parameters}
    ranks = decisions.mesh_of(plan).shard
    pieces: dict[str, int] = {}
    flats: list[ShardedParameter] = []
    flat_of: dict[str, ShardedParameter] = {}
    for layout in (layout for name in plan.layouts for layout in decisions.layouts if layout.name == name):
        members = [known[entry.parameter] for entry in layout.entries]
        flat = replace(
            members[0],
            name=layout.name,
            dim=0,
            shard_elements=layout.shard_elements,
            num_elements=ranks * layout.shard_elements,
        )
        flats.append(flat)
        flat_of |= {member.name: flat for member in members}
        pieces |= _pieces_of_fullest(layout, ranks)
    ragged = tuple(replace(parameter, shard_elements=pieces[parameter.name]) for parameter in parameters)
    return ragged, tuple(flats), flat_of


def _pieces_of_fullest(layout: Layout, ranks: int) -> dict[str, int]:
    """Elements of each parameter in the shard that has the fewest gaps."""
    size = layout.shard_elements
    filled: Counter[int] = Counter()
    cut: dict[str, Counter[int]] = {}
    for entry in layout.entries:
        begin, end = entry.offset_elements, entry.offset_elements + entry.num_elements
        inside = Counter(
            {
                rank: min(end, (rank + 1) * size) - max(begin, rank * size)
                for rank in range(begin // size, -(-end // size))
            }
        )
        cut[entry.parameter] = inside
        filled += inside
    fullest = max(range(ranks), key=lambda rank: (filled[rank], -rank))
    return {name: inside[fullest] for name, inside in cut.items()}


def _modules_above(path: str) -> list[str]:
    """Every proper prefix of a dotted path, the root among them."""
    names = path.split(".")
    return [".".join(names[:length]) for length in range(len(names))] if path else []


def in_enter_order(units: Iterable[Unit]) -> list[tuple[Unit, Pass]]:
    """Passes of non-root units as their pre-forward hooks fire: by first call, outer before inner."""
    passes = [(unit, run) for unit in units if not unit.is_root for run in unit.passes]
    return sorted(passes, key=lambda item: (item[1].first_call, module_depth(item[1].entered.module)))


def in_leave_order(units: Iterable[Unit]) -> list[tuple[Unit, Pass]]:
    """Passes of non-root units as their post-forward hooks fire: by last call, inner before outer."""
    passes = [(unit, run) for unit in units if not unit.is_root for run in unit.passes]
    return sorted(passes, key=lambda item: (item[1].last_call, -module_depth(item[1].left.module)))
