"""Optimizer state off the device (`optimizer_tier`): what it takes, and how long the optimizer's step is then.

The client (`runtime_client/offload`) takes units in the order of registration through five stages, each of which
has one unit at a time: fetch shards and gradients, load the state, update on the CPU, give the shards back, store
the state. Shards and gradients pass through `NUM_BUFFERS` pinned buffers, state on NVMe through as many that are
not pinned; each holds the largest unit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.program.inputs import LocalShards, local_shards
from planner.program.step import Knobs
from planner.program.units import Partition
from planner.schema import Parameter, StateTier

NUM_BUFFERS = 3
ALIGNMENT_BYTES = 64
"""Of each tensor in a buffer."""
PAGE_BYTES = 4096
"""Of the state of each unit in its file, which holds it twice."""
NUM_SLOTS = 2
NUM_MOMENTS = 2
"""Of Adam, in the type of the parameter."""


class StageCosts(Protocol):
    """Durations of what happens to a unit, in nanoseconds."""

    def device_to_host_ns(self, size_bytes: int, /) -> int:
        """Copy to pinned host memory."""

    def host_to_device_ns(self, size_bytes: int, /) -> int:
        """Copy from pinned host memory."""

    def cpu_optimizer_ns(self, shards: LocalShards, /) -> int:
        """Optimizer step over shards on the host."""

    def nvme_read_ns(self, size_bytes: int, /) -> int:
        """Read by one rank, while all of its host do."""

    def nvme_write_ns(self, size_bytes: int, /) -> int:
        """Write by one rank, while all of its host do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """What the state of parameters on the device takes elsewhere, on one rank."""

    host_bytes: int = 0
    """State in host memory, or buffers for state on NVMe; not pinned."""
    staging: tuple[int, ...] = ()
    """Pinned buffers for shards and gradients."""
    nvme_bytes: int = 0
    transient_bytes: int = 0
    """What the step on the CPU needs on top in host memory."""

    @classmethod
    def of(
        cls, units: Sequence[LocalShards], tier: StateTier, transient_bytes: Callable[[LocalShards], int]
    ) -> "StateMemory":
        """Of units whose state is in one tier; nothing of none.

        Args:
            units: shards of each, in the order in which they step.
            tier: host or NVMe.
            transient_bytes: what the optimizer step of some shards needs on top.
        """
        if not units:
            return cls()
        states = [NUM_MOMENTS * _buffer_bytes(shards) for shards in units]
        on_nvme = tier is StateTier.NVME
        return cls(
            host_bytes=NUM_BUFFERS * max(states) if on_nvme else sum(states),
            staging=(2 * max(map(_buffer_bytes, units)),) * NUM_BUFFERS,
            nvme_bytes=sum(NUM_SLOTS * _round_up(state, PAGE_BYTES) for state in states) if on_nvme else 0,
            transient_bytes=max(map(transient_bytes, units)),
        )


def units_off_device(parts: Partition, knobs: Knobs) -> list[LocalShards]:
    """Shards of each unit whose state is off the device, and its parameters on it, in the order of stepping."""
    units = [unit for unit in range(len(parts.units)) if knobs.optimizer_tier(unit) is not StateTier.DEVICE]
    unit_of = {name: unit for unit in units for name, _ in parts.units[unit].parameters}
    found: dict[int, list[tuple[str, Parameter, int]]] = {}
    for shard in local_shards(parts, knobs.meshes, units):
        found.setdefault(unit_of[shard[0]], []).append(shard)
    return list(found.values())


def tier_off_device(knobs: Knobs) -> StateTier:
    """Where optimizer state is that is not on the device; all of it is in one place."""
    units = range(len(knobs.optimizer_tiers))
    return next(
        (tier for unit in units if (tier := knobs.optimizer_tier(unit)) is not StateTier.DEVICE), StateTier.DEVICE
    )


def state_step_ns(units: Sequence[LocalShards], tier: StateTier, costs: StageCosts) -> int:
    """From the first fetch until everything is given back and stored.

    What is stored last would still be written under the next forward; it is counted here all the same.
    """
    fetched = loaded = updated = 0
    returned: list[int] = []
    stored: list[int] = []
    for place, shards in enumerate(units):
        buffer, state = _bytes(shards), NUM_MOMENTS * _bytes(shards)
        free, free_state = (
            (ends[place - NUM_BUFFERS] if place >= NUM_BUFFERS else 0) for ends in (returned, stored)
        )
        on_nvme = tier is StateTier.NVME
        fetched = max(fetched, free) + costs.device_to_host_ns(2 * buffer)
        loaded = max(loaded, free_state) + costs.nvme_read_ns(state) if on_nvme else 0
        updated = max(updated, fetched, loaded) + costs.cpu_optimizer_ns(shards)
        returned.append(max(updated, returned[-1] if returned else 0) + costs.host_to_device_ns(buffer))
        stored.append(max(updated, stored[-1]) if stored else updated)
        stored[-1] += costs.nvme_write_ns(state) if on_nvme else 0
    return max((*returned, *stored), default=0)


def _bytes(shards: LocalShards) -> int:
    return sum(elements * parameter.dtype.itemsize_bytes for _, parameter, elements in shards)


def _buffer_bytes(shards: LocalShards) -> int:
    return sum(
        _round_up(elements * parameter.dtype.itemsize_bytes, ALIGNMENT_BYTES) for _, parameter, elements in shards
    )


def _round_up(size_bytes: int, step_bytes: int) -> int:
    return -(-size_bytes // step_bytes) * step_bytes
