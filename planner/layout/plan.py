"""Layouts of all units of a model, at the largest shard degree that pads little."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from planner.layout.atoms import DeclaredAtom, table_names
from planner.layout.owners import PlannedOwners, plan_owners
from planner.layout.planned import LayoutOptions, PlannedBuffer, PlannedUnit
from planner.layout.precision import precision_notes
from planner.layout.units import UnitPlanner
from planner.program.pieces import pieces
from planner.program.units import partition
from planner.schema import InconsistentRequest, Layout, ModelDescription, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """Buffers of all units and owners of what they cut."""

    num_ranks: int
    """Shard degree."""
    units: tuple[PlannedUnit, ...]
    """In registration order, the root first; units without parameters are left out."""
    owners: PlannedOwners | None

    @property
    def buffers(self) -> tuple[PlannedBuffer, ...]:
        """Of all units."""
        return tuple(buffer for unit in self.units for buffer in unit.buffers)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """As a plan lists them."""
        return tuple(buffer.layout for buffer in self.buffers)

    @property
    def num_elements(self) -> int:
        """Elements of all parameters."""
        return sum(unit.num_elements for unit in self.units)

    @property
    def padding_elements(self) -> int:
        """Padding of all buffers."""
        return sum(unit.padding_elements for unit in self.units)

    @property
    def notes(self) -> tuple[str, ...]:
        """What follows from where the shards end, in words."""
        cut = (piece for buffer in self.buffers for piece in pieces(buffer.layout))
        return precision_notes(cut, {name for buffer in self.buffers for name in buffer.eight_bit})


def plan_layouts(
    model: ModelDescription,
    workload: Workload,
    unit_modules: Sequence[tuple[str, ...]],
    options: LayoutOptions,
    declared: Sequence[DeclaredAtom] = (),
) -> LayoutPlan:
    """Plan the buffers of all units.

    Args:
        model: what is trained.
        workload: its optimizer groups.
        unit_modules: modules of every unit but the root.
        options: what may be chosen; of several degrees the largest with accepted padding, or the least padding.
        declared: atoms by pattern.

    Raises:
        InconsistentRequest: units do not fit the model, a pattern matches no parameter, or no optimizer group
            matches a trainable one.
    """
    names = [name for name, _ in model.iter_parameters()]
    for one in declared:
        if not any(fnmatchcase(name, one.pattern) for name in names):
            raise InconsistentRequest(
                f"the atom for {one.pattern!r} matches no parameter; patterns are globs over full names such as "
                f"{next(iter(names), 'layers.0.weight')!r}"
            )
    found: list[LayoutPlan] = []
    for plan in _at_each_degree(model, workload, unit_modules, options, declared):
        found.append(plan)
        if plan.padding_elements * 1_000_000 <= options.accepted_ppm * plan.num_elements:
            return plan
    return min(found, key=lambda plan: plan.padding_elements)


def _at_each_degree(
    model: ModelDescription,
    workload: Workload,
    unit_modules: Sequence[tuple[str, ...]],
    options: LayoutOptions,
    declared: Sequence[DeclaredAtom],
) -> Iterator[LayoutPlan]:
    parts = partition(model, unit_modules).units
    tables = table_names(model)
    for num_ranks in sorted(set(options.shard_degrees), reverse=True):
        planner = UnitPlanner(
            workload=workload, tables=tables, declared=declared, options=options, num_ranks=num_ranks
        )
        units = tuple(unit for unit in map(planner.plan, parts) if unit.buffers)
        yield LayoutPlan(num_ranks=num_ranks, units=units, owners=plan_owners(units, num_ranks))
