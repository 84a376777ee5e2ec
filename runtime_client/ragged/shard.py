"""Turn the parameters of a unit into its planned buffers, around the `fully_shard` call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import nn

from planner.schema import Layout
from runtime_client.fingerprint import unwrapped_name
from runtime_client.ragged.buffer import PlannedBuffer, Slot
from runtime_client.ragged.gradient import Place
from runtime_client.ragged.state_dict import watch_state_dict

Owners = Mapping[str, tuple[tuple[nn.Module, str], ...]]
"""Modules and attributes that hold each parameter, by each of its original names."""

Sharded = TypeVar("Sharded")


def owners_of(model: nn.Module) -> Owners:
    """Where each parameter of a model is registered; tied parameters in several places."""
    names: dict[str, int] = {}
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            names[unwrapped_name(f"{path}.{attribute}" if path else attribute)] = id(parameter)
            places.setdefault(id(parameter), []).append((module, attribute))
    return {name: tuple(places[key]) for name, key in names.items()}


def shard_ragged(
    modules: Sequence[nn.Module],
    layouts: Iterable[Layout],
    owners: Owners,
    num_ranks: int,
    fully_shard: Callable[[], object],
) -> list[PlannedBuffer]:
    """Replace the parameters of one unit by planned buffers, shard it, and give the names back.

    Args:
        modules: Modules of the unit.
        layouts: Checked layouts that cover its parameters.
        owners: `owners_of` the model, taken before any unit was sharded.
        num_ranks: Ranks of the shard group.
        fully_shard: The `fully_shard` call of the unit.
    """
    buffers = [
        PlannedBuffer(
            layout.name, _slots(layout, owners), shard_elements=layout.shard_elements, num_ranks=num_ranks
        )
        for layout in layouts
    ]
    names = [f"_ragged_{index}" for index in range(len(buffers))]
    for name, buffer in zip(names, buffers, strict=True):
        modules[0].add_module(name, buffer.holder)
    fully_shard()
    for name, buffer in zip(names, buffers, strict=True):
        delattr(modules[0], name)
        buffer.attach(modules[0])
    watch_state_dict(modules[0], buffers)
    return buffers


def _slots(layout: Layout, owners: Owners) -> list[Slot]:
    ordered = sorted(layout.entries, key=lambda entry: entry.offset_elements)
    return [
        Slot(
            name=entry.parameter,
            owners=owners[entry.parameter],
            shape=tuple(_shape(owners[entry.parameter])),
            place=Place(entry.offset_elements, entry.num_elements),
        )
        for entry in ordered
    ]


def _shape(owners: tuple[tuple[nn.Module, str], ...]) -> Sequence[int]:
    module, attribute = owners[0]
    return module.get_parameter(attribute).shape
