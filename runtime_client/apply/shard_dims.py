"""Parameters that are sharded on another dimension than the first."""

import difflib
from collections.abc import Callable

from torch import nn
from torch.distributed.tensor import Shard

from planner.schema import Decisions, ShardDim
from runtime_client.apply.units import Unit
from runtime_client.errors import InvalidShardDim, PartialReshardOfShardDim, UnevenShardDim, UnknownParameter
from runtime_client.fingerprint import iter_parameters

ShardPlacement = Callable[[nn.Parameter], Shard | None]
"""What `fully_shard` takes as `shard_placement_fn`."""


def check_shard_dims(units: list[Unit], decisions: Decisions) -> None:
    """What `fully_shard` would refuse amid sharding, or crash on in backward.

    Raises:
        UnknownParameter, InvalidShardDim, UnevenShardDim, PartialReshardOfShardDim: see each.
    """
    found = {name: (unit, parameter) for unit in units for name, parameter in unit.parameters}
    listed: dict[int, str] = {}
    for index, entry in enumerate(decisions.shard_dims):
        where = f"decisions.shard_dims[{index}]"
        if entry.parameter not in found:
            close = difflib.get_close_matches(entry.parameter, found, n=3)
            hint = f"nearest: {', '.join(close)}" if close else f"it has {len(found)} parameters"
            raise UnknownParameter(
                f"{where}: the model has no parameter {entry.parameter!r} ({hint}). Plan this model again."
            )
        unit, parameter = found[entry.parameter]
        if id(parameter) in listed:
            raise InvalidShardDim(
                f"{where}: {entry.parameter!r} is the parameter of {listed[id(parameter)]} already. List it once."
            )
        listed[id(parameter)] = where
        _check_entry(entry, parameter, decisions.mesh_of(unit.plan).shard, where)
        _check_reshard(entry, unit)


def shard_placement(model: nn.Module, decisions: Decisions) -> ShardPlacement | None:
    """Placement of the parameters that the decisions list, by their identity; None where they list none."""
    dims = {entry.parameter: entry.dim for entry in decisions.shard_dims}
    if not dims:
        return None
    placements = {id(parameter): Shard(dims[name]) for name, parameter in iter_parameters(model) if name in dims}
    return lambda parameter: placements.get(id(parameter))


def _check_entry(entry: ShardDim, parameter: nn.Parameter, shard: int, where: str) -> None:
    shape = tuple(parameter.shape)
    if entry.dim >= len(shape):
        raise InvalidShardDim(
            f"{where}: {entry.parameter!r} has shape {shape} and no dimension {entry.dim}. Leave it out to shard "
            "it on dimension 0."
        )
    if shape[entry.dim] % shard:
        raise UnevenShardDim(
            f"{where}: dimension {entry.dim} of {entry.parameter!r}, shape {shape}, does not divide evenly over "
            f"{shard} ranks, which FSDP2 requires of any but the first. Leave it out to shard it on dimension 0."
        )


def _check_reshard(entry: ShardDim, unit: Unit) -> None:
    value = unit.plan.reshard_after_forward
    if value is not None and not isinstance(value, bool):
        raise PartialReshardOfShardDim(
            f"{unit.where}.reshard_after_forward is {value}, but {entry.parameter!r} of that unit is sharded on "
            f"dimension {entry.dim}; FSDP2 cannot gather it again from fewer ranks. Use true or false."
        )
