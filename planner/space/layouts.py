"""Even or ragged: units whose planned buffers save memory, or keep whole what FSDP2's even cut goes through.

[Note: even or ragged]
A unit gets a layout where an even cut goes through an atom that the request declares, or where the layout saves at
least 1 % of what a rank holds of the unit (shards, their gradients, optimizer state) or gathers of it. Where in no
unit any of these sizes grows, and a grouping with even cuts is not tried beside that with layouts: time and
memory grow with each of them (but for copies that partial resharding and accumulation make of one parameter, or
buffer, at a time). Which units get one is decided unit by unit; a plan then has all of these layouts or, where that
is possible, none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planner.costs.optimizer import group_of, is_eight_bit, largest_shard_degree, optimizer_state_bytes
from planner.layout.atoms import atoms_of_request, table_names, together_elements
from planner.layout.planned import LayoutOptions, even_padding
from planner.layout.units import UnitPlanner
from planner.program.ragged import elements_on_fullest
from planner.program.sizes import shard_elements, unit_bytes
from planner.program.units import Partition, Unit
from planner.schema import ClientFeature, Layout, MeshPlan, OptimizerName, Parameter, PlanRequest
from planner.space.fixed import allowed, allows
from planner.space.owners import has_muon, may_have_owners

LEAST_SAVED_PERCENT = 1
"""A layout saves so much of a unit; for less FSDP2's own cut is kept."""


class Cut(StrEnum):
    """How a plan cuts the units that a layout would help; values of the knob `layouts`."""

    EVEN = "even"
    RAGGED = "ragged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A grouping with the layouts of some units."""

    partition: Partition
    cut: Cut | None = None
    """None where no unit needs or profits from a layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """What is planned for one unit; no layouts where it is cut evenly."""

    layouts: tuple[Layout, ...] = ()
    cuts_atom: str | None = None
    """A parameter whose atom an even cut goes through."""
    grows: bool = False
    """Some size is larger with the layouts."""


_EVENLY = _Chosen()


@dataclass(slots=True)
class Layouts:
    """Ragged layouts of the units of one request; equal units are planned once."""

    request: PlanRequest
    refusal: str | None = field(init=False, default=None)
    """Why there was no way to cut some grouping."""
    _tables: frozenset[str] = field(init=False)
    """Parameters of embeddings and heads."""
    _planners: dict[int, UnitPlanner] = field(init=False, default_factory=dict)
    _chosen: dict[tuple[object, ...], _Chosen] = field(init=False, default_factory=dict)
    _ways: dict[tuple[object, ...], tuple[Way, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._tables = table_names(self.request.model)

    def ways(self, parts: Partition, meshes: Sequence[MeshPlan]) -> tuple[Way, ...]:
        """Ways to cut a grouping on these meshes that the request allows; none where an atom would be cut.

        Args:
            parts: units without layouts. It is known again by identity, so it has to live as long as this.
            meshes: of each unit.
        """
        key = (id(parts), *meshes)
        if key not in self._ways:
            self._ways[key] = tuple(self._ways_of(parts, meshes))
        return self._ways[key]

    def _ways_of(self, parts: Partition, meshes: Sequence[MeshPlan]) -> Iterator[Way]:
        chosen = {
            number: found
            for number, unit in enumerate(parts.units)
            if (found := self._choose(parts, unit, meshes[number].shard)) is not _EVENLY
        }
        if not chosen:
            yield Way(partition=parts)
            return
        cuts = [found.cuts_atom for found in chosen.values() if found.cuts_atom]
        needs_owners = self._is_for_torch_muon and any(self._has_muon(parts.units[number]) for number in chosen)
        may_be_ragged = (
            allows(self.request, ClientFeature.RAGGED_LAYOUT)
            and allowed(self.request, {"layouts": Cut.RAGGED})
            and not needs_owners
        )
        may_be_even = not cuts and allowed(self.request, {"layouts": Cut.EVEN})
        if may_be_ragged:
            layouts = {number: found.layouts for number, found in chosen.items()}
            yield Way(partition=replace(parts, layouts=layouts), cut=Cut.RAGGED)
        if may_be_even and (not may_be_ragged or any(found.grows for found in chosen.values())):
            yield Way(partition=parts, cut=Cut.EVEN)
        if not (may_be_ragged or may_be_even):
            whose = f"even shards cut the atom of {cuts[0]!r}" if cuts else "'even' is not among the fixed choices"
            feature = ClientFeature.MUON_OWNERS if needs_owners else ClientFeature.RAGGED_LAYOUT
            knob = "'muon_owners' must not be false" if needs_owners else "'layouts' may be 'ragged' or 'even'"
            self.refusal = (
                f"layouts: {whose}, and ragged layouts are not allowed{' for Muon' if needs_owners else ''}; the "
                f"client needs the feature {feature.value!r}, and the knob {knob}"
            )

    def _choose(self, parts: Partition, unit: Unit, shard: int) -> _Chosen:
        key = (shard, unit.modules[0], tuple(name for name, _ in unit.parameters))
        if key not in self._chosen:
            self._chosen[key] = self._choose_anew(parts, unit, shard)
        return self._chosen[key]

    def _choose_anew(self, parts: Partition, unit: Unit, shard: int) -> _Chosen:
        if shard == 1 or not unit.parameters:
            return _EVENLY
        cut = next((name for name, parameter in unit.parameters if self._cuts_atom(name, parameter, shard)), None)
        if cut is None and not self._may_save(unit, shard):
            return _EVENLY
        planned = self._planner(shard).plan(unit)
        layouts = tuple(buffer.layout for buffer in planned.buffers)
        even, ragged = (self._sizes(parts, unit, shard, own) for own in ((), layouts))
        saves = any(100 * ragged[name] <= (100 - LEAST_SAVED_PERCENT) * even[name] for name in ("held", "gathered"))
        if cut is None and not saves:
            return _EVENLY
        return _Chosen(layouts=layouts, cuts_atom=cut, grows=any(ragged[name] > even[name] for name in even))

    def _may_save(self, unit: Unit, shard: int) -> bool:
        """Whether even cuts pad as much as a layout has to save, or leave shards too small for 8-bit state."""
        workload = self.request.workload
        if self._is_for_torch_muon and self._has_muon(unit):
            return False
        num_elements = sum(parameter.num_elements for _, parameter in unit.parameters)
        padding = sum(even_padding(parameter, shard) for _, parameter in unit.parameters)
        return 100 * padding >= LEAST_SAVED_PERCENT * num_elements or any(
            is_eight_bit(parameter.num_elements)
            and not is_eight_bit(shard_elements(parameter, shard))
            and group_of(workload, name).optimizer is OptimizerName.ADAMW_8BIT
            for name, parameter in unit.parameters
            if parameter.requires_grad
        )

    @property
    def _is_for_torch_muon(self) -> bool:
        """Torch's Muon takes even shards only; owners take any."""
        return has_muon(self.request) and not may_have_owners(self.request)

    def _has_muon(self, unit: Unit) -> bool:
        return largest_shard_degree(self.request.workload, unit.parameters) is not None

    def _sizes(self, parts: Partition, unit: Unit, shard: int, layouts: Sequence[Layout]) -> Mapping[str, int]:
        workload = self.request.workload
        sizes = unit_bytes(
            unit,
            shard=shard,
            precision=workload.precision,
            with_gradient=parts.with_gradient,
            with_zeros=parts.with_zeros,
            layouts=layouts,
        )
        elements: dict[str, int] = {}
        for layout in layouts:
            elements |= elements_on_fullest(layout, shard)
        state = sum(
            optimizer_state_bytes(workload, name, parameter, elements.get(name, shard_elements(parameter, shard)))
            for name, parameter in unit.parameters
            if name in parts.with_gradient
        )
        return {
            "held": sizes.stored + sizes.sharded_gradients + state,
            "gathered": sizes.gathered,
            "cast": sizes.cast,
            "reduce_input": sizes.reduce_input,
            "state": state,
        }

    def _cuts_atom(self, name: str, parameter: Parameter, shard: int) -> bool:
        """Whether even chunks end inside an atom of the request or the description."""
        atoms = atoms_of_request(self.request.workload, name, parameter, is_table=name in self._tables)
        step, chunk = together_elements(atoms, parameter), shard_elements(parameter, shard)
        return 0 < chunk < parameter.num_elements and chunk % step != 0

    def _planner(self, shard: int) -> UnitPlanner:
        if shard not in self._planners:
            self._planners[shard] = UnitPlanner(
                workload=self.request.workload,
                tables=self._tables,
                declared=(),
                options=LayoutOptions(shard_degrees=(shard,)),
                num_ranks=shard,
            )
        return self._planners[shard]
