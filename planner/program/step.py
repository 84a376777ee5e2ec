"""What a program is built from: durations, the knobs of a plan (fixed or open), sizes of units and calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from planner.program.choices import Choice
from planner.program.units import Partition, UnitBytes
from planner.schema import ActivationPolicy


class Durations(Protocol):
    """Durations of operations; `planner.costs.CostModel` is one."""

    @property
    def launch_ns(self) -> int:
        """CPU time to issue one kernel."""

    @property
    def all_reduce_shares_link(self) -> bool:
        """All-reduces use the network card of the shard axis."""

    def forward_ns(self, kind: str) -> int:
        """Forward of a call kind."""

    def backward_ns(self, kind: str) -> int:
        """Backward of a call kind, without recomputation."""

    def recompute_ns(self, kind: str) -> int:
        """Recomputation of a call kind."""

    def forward_kernels(self, kind: str) -> int:
        """Launches of the forward."""

    def backward_kernels(self, kind: str) -> int:
        """Launches of the backward."""

    def recompute_kernels(self, kind: str) -> int:
        """Launches of the recomputation."""

    def all_gather_ns(self, size_bytes: int) -> int:
        """All-gather into a buffer of this size."""

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        """Reduce-scatter of a buffer of this size."""

    def all_reduce_ns(self, size_bytes: int) -> int:
        """All-reduce of a buffer of this size."""

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        """Copy on the device."""


PrefetchTargets = tuple[tuple[int, ...], ...]
"""Per unit, the units that it prefetches; no targets at all means FSDP2's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Decisions of a plan, each fixed or open."""

    shard: int
    replicate: int
    reshard: tuple[Choice[bool], ...]
    """Per unit: reshard after forward."""
    activation: Mapping[int, Choice[ActivationPolicy]]
    """Per call; calls left out keep everything."""
    forward_prefetch: Choice[PrefetchTargets]
    backward_prefetch: Choice[PrefetchTargets]
    reduce_scatter_max_input_buffers: int = 1
    accumulates: bool = False
    """More than one micro-batch: sharded gradients exist already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What the program is about, apart from the knobs."""

    partition: Partition
    sizes: tuple[UnitBytes, ...]
    """Per unit."""
    gradients: tuple[tuple[int, ...], ...]
    """Per call, bytes of each gradient in `gradient_order`."""
    optimizer_bytes: int
    optimizer_transient_bytes: int
    micro_batch: int
    sequence: int
