"""Which parameters and calls each unit owns, and the bytes that follow from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from planner.schema.base import DType
from planner.schema.model import LOSS_PATH, ModelDescription, Parameter
from planner.schema.plan import Decisions, UnitPlan

_FLOATING = {name for name in DType if "float" in name}


def is_at_or_below(path: str, module: str) -> bool:
    """Whether a dotted path lies in a module; everything lies in the root."""
    return not module or path == module or path.startswith(f"{module}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedParameter:
    """One parameter under even dim-0 sharding, as rank 0 (the fullest) sees it."""

    name: str
    shard_elements: int
    num_elements: int
    storage: DType
    gathered: DType
    reduced: DType
    requires_grad: bool

    @classmethod
    def of(cls, name: str, parameter: Parameter, decisions: Decisions) -> "ShardedParameter":
        """Apply the mesh and the mixed-precision policy to a parameter."""
        storage = parameter.dtype
        gathered = decisions.param_dtype if decisions.param_dtype and storage in _FLOATING else storage
        rows = parameter.shape[0] if parameter.shape else 1
        rows_per_rank = -(-rows // decisions.mesh.shard)
        return cls(
            name=name,
            shard_elements=rows_per_rank * (parameter.num_elements // rows) if rows else 0,
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
    def reduce_output_bytes(self) -> int:
        """What this rank receives from a reduce-scatter."""
        return self.shard_elements * self.reduced.itemsize_bytes


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit of the plan with what it owns. `first_call` is None when none of its modules runs."""

    plan: UnitPlan
    parameters: tuple[ShardedParameter, ...]
    first_call: int | None
    last_call: int | None
    registration: tuple[int, int]
    """Sorts units as `named_modules()` meets them."""

    @property
    def is_root(self) -> bool:
        """Whether this is the unit of the root module."""
        return self.plan.modules == ("",)

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
        return sum(parameter.gather_input_bytes for parameter in self.parameters)

    @cached_property
    def cast_bytes(self) -> int:
        """Temporary copy of the shards that gathering casts."""
        return sum(parameter.cast_bytes for parameter in self.parameters)

    @property
    def depth(self) -> int:
        """Path depth of the shallowest module."""
        return min(module_depth(module) for module in self.plan.modules)


def module_depth(module: str) -> int:
    """Number of names in a dotted path."""
    return len(module.split(".")) if module else 0


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


def build_units(model: ModelDescription, decisions: Decisions) -> tuple[Unit, ...]:
    """The units in the order of the plan."""
    owners = module_owners(decisions.units)
    owned: dict[int, list[ShardedParameter]] = {}
    places: dict[str, int] = {}
    for place, (name, parameter) in enumerate(model.iter_parameters()):
        places |= {module: places.get(module, place) for module in _modules_above(name)}
        index = owner(name, owners)
        if parameter.tied_to is None and index is not None:
            owned.setdefault(index, []).append(ShardedParameter.of(name, parameter, decisions))
    calls: dict[str, list[int]] = {}
    for index, call in enumerate(model.calls):
        if call.path != LOSS_PATH:
            for module in (call.path, *_modules_above(call.path)):
                calls.setdefault(module, []).append(index)
    units = []
    for index, plan in enumerate(decisions.units):
        inside = [call for module in plan.modules for call in calls.get(module, ())]
        units.append(
            Unit(
                plan=plan,
                parameters=tuple(owned.get(index, ())),
                first_call=min(inside, default=None),
                last_call=max(inside, default=None),
                registration=min((places.get(m, len(places)), module_depth(m)) for m in plan.modules),
            )
        )
    return tuple(units)


def _modules_above(path: str) -> list[str]:
    """Every proper prefix of a dotted path, the root among them."""
    names = path.split(".")
    return [".".join(names[:length]) for length in range(len(names))] if path else []


def enter_order(units: Iterable[Unit]) -> list[Unit]:
    """Non-root units that run, as their pre-forward hooks fire: by first call, outer before inner."""
    running = [unit for unit in units if not unit.is_root and unit.first_call is not None]
    return sorted(running, key=lambda unit: (unit.first_call, -(unit.last_call or 0), unit.depth))


def leave_order(units: Iterable[Unit]) -> list[Unit]:
    """Non-root units that run, as their post-forward hooks fire: by last call, inner before outer."""
    running = [unit for unit in units if not unit.is_root and unit.last_call is not None]
    return sorted(running, key=lambda unit: (unit.last_call, -(unit.first_call or 0), -unit.depth))
