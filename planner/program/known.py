"""Sizes that are worked out once for all groupings and meshes of a model at one precision."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from planner.program.sizes import UnitBytes, gradient_bytes, gradient_deliveries, unit_bytes
from planner.program.units import Partition, Unit
from planner.schema import Layout, ModelDescription, Precision

OfCalls = tuple[tuple[int, ...], ...]
"""Of each call a number for each gradient, in its `gradient_order`."""


@dataclass(slots=True)
class KnownSizes:
    """Sizes by what they depend on; added to whenever others are asked for.

    Its partitions are of one model, whose blocks may be replaced by their parts.
    """

    precision: Precision
    _of_units: dict[Hashable, UnitBytes] = field(default_factory=dict)
    _of_gradients: dict[int, tuple[ModelDescription, OfCalls, OfCalls]] = field(default_factory=dict)
    """By the identity of the model, which therefore is kept."""

    def of_units(self, parts: Partition, shards: Sequence[int]) -> tuple[UnitBytes, ...]:
        """Sizes of each unit, sharded over so many ranks each."""
        return tuple(
            self._of_unit(parts, number, unit, shard)
            for number, (unit, shard) in enumerate(zip(parts.units, shards, strict=True))
        )

    def _of_unit(self, parts: Partition, number: int, unit: Unit, shard: int) -> UnitBytes:
        """Units of the same modules are the same, but the root, which has what the others leave."""
        layouts = parts.layouts.get(number, ())
        left = tuple(name for name, _ in unit.parameters) if unit.modules == ("",) else ()
        key = (unit.modules, left, shard, parts.with_zeros, tuple(layout.name for layout in layouts))
        if key not in self._of_units:
            self._of_units[key] = self._of_content(parts, unit, shard, layouts)
        return self._of_units[key]

    def _of_content(self, parts: Partition, unit: Unit, shard: int, layouts: Sequence[Layout]) -> UnitBytes:
        """Blocks have equal parameters; names matter to layouts and to dimensions that are not the first."""
        key = None if layouts or parts.dims else (shard, *_content(parts, unit))
        if key is not None and key in self._of_units:
            return self._of_units[key]
        sizes = unit_bytes(
            unit,
            shard=shard,
            precision=self.precision,
            with_gradient=parts.with_gradient,
            with_zeros=parts.with_zeros,
            dims=parts.dims,
            layouts=layouts,
        )
        if key is not None:
            self._of_units[key] = sizes
        return sizes

    def of_gradients(self, parts: Partition) -> tuple[OfCalls, OfCalls]:
        """Bytes of each gradient of each call, and the call in whose backward it is delivered."""
        model = parts.model
        if id(model) not in self._of_gradients:
            sizes = tuple(map(tuple, gradient_bytes(parts, self.precision)))
            self._of_gradients[id(model)] = model, sizes, tuple(map(tuple, gradient_deliveries(parts)))
        return self._of_gradients[id(model)][1:]


def _content(parts: Partition, unit: Unit) -> Iterator[Hashable]:
    for name, parameter in unit.parameters:
        yield parameter.shape, parameter.dtype, name in parts.with_gradient, name in parts.with_zeros
