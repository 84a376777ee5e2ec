"""What a program is built from: durations, the knobs of a plan (fixed or open), sizes of units and calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from planner.program.choices import Choice
from planner.program.sizes import UnitBytes
from planner.program.units import Partition
from planner.schema import ActivationPolicy, GradientSync, HostRuns, MeshPlan, StateTier


class Collectives(Protocol):
    """Durations over the groups of one mesh; `planner.costs.mesh.MeshCosts` is one."""

    def all_gather_ns(self, size_bytes: int, ranks: int | None = None) -> int:
        """All-gather into a buffer of this size, over the shard axis or over `ranks` neighbours of it."""

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        """Reduce-scatter of a buffer of this size."""

    def all_reduce_ns(self, size_bytes: int) -> int:
        """All-reduce of a buffer of this size."""


class Durations(Protocol):
    """Durations of operations; `planner.costs.CostModel` is one."""

    @property
    def launch_ns(self) -> int:
        """CPU time to issue one kernel."""

    @property
    def host_runs(self) -> HostRuns:
        """What the issuing thread carries out itself."""

    @property
    def all_reduce_shares_link(self) -> bool:
        """All-reduces use the network card of all-gathers and reduce-scatters."""

    @property
    def concurrent_collectives(self) -> bool:
        """Collectives of two communicators over a shard axis do not slow each other down."""

    def forward_ns(self, kind: str) -> int:
        """Forward of a call kind."""

    def backward_ns(self, kind: str) -> int:
        """Backward of a call kind, without recomputation."""

    def recompute_ns(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        """Recomputation of a call kind, where the outputs of some operations are kept."""

    def forward_kernels(self, kind: str) -> int:
        """Launches of the forward."""

    def backward_kernels(self, kind: str) -> int:
        """Launches of the backward."""

    def recompute_kernels(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        """Launches of the recomputation."""

    def collectives(self, mesh: MeshPlan) -> Collectives:
        """Collectives of units on a mesh."""

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        """Copy on the device."""

    def host_to_device_ns(self, size_bytes: int) -> int:
        """Copy from pinned host memory."""

    def device_to_host_ns(self, size_bytes: int) -> int:
        """Copy to pinned host memory."""


PrefetchTargets = tuple[tuple[int, ...], ...]
"""Per unit, the units that it prefetches; no targets at all means FSDP2's default."""
Resharding = bool | int
"""After forward: True shards over all ranks of the shard axis, False keeps, a number shards over so many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What a call keeps from forward to backward."""

    policy: ActivationPolicy
    saved_ops: tuple[str, ...] = ()


KEEP = Activation(policy=ActivationPolicy.NONE)
RECOMPUTE = Activation(policy=ActivationPolicy.FULL)
TO_HOST = Activation(policy=ActivationPolicy.OFFLOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Place of a micro-batch in its step."""

    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Decisions of a plan, each fixed or open."""

    meshes: tuple[MeshPlan, ...]
    """Per unit."""
    reshard: tuple[Choice[Resharding], ...]
    """Per unit: reshard after forward."""
    activation: Mapping[int, Choice[Activation]]
    """Per call; calls left out keep everything."""
    forward_prefetch: Choice[PrefetchTargets]
    backward_prefetch: Choice[PrefetchTargets]
    reshard_after_backward: tuple[bool, ...] = ()
    """Per unit; none at all means that every unit does."""
    on_host: tuple[bool, ...] = ()
    """Per unit: shards, their gradients and their optimizer state are in host memory. None at all: no unit."""
    optimizer_tiers: tuple[StateTier, ...] = ()
    """Per unit that is not on the host: where its optimizer state is. None at all: on the device."""
    aliased: tuple[bool, ...] = ()
    """Per unit: gathered in place. None at all: no unit."""
    checkpointed_blocks: frozenset[str] = frozenset()
    """Blocks that were replaced by their parts and are recomputed as a whole."""
    reduce_scatter_max_input_buffers: int = 1
    separate_reduce_scatter_group: bool = False
    gradient_sync: GradientSync = GradientSync.EVERY_MICRO_BATCH
    micro_batch: MicroBatch = MicroBatch()

    def shard(self, unit: int) -> int:
        """Ranks that the unit is sharded over."""
        return self.meshes[unit].shard

    def replicate(self, unit: int) -> int:
        """How often it is replicated."""
        return self.meshes[unit].replicate

    def keeps_after_backward(self, unit: int) -> bool:
        """Whether the unit stays gathered when this micro-batch ends."""
        return not self.micro_batch.is_last and not self._reshards_after_backward(unit)

    def starts_gathered(self, unit: int) -> bool:
        """Whether the micro-batch before left the unit gathered."""
        return not self.micro_batch.is_first and not self._reshards_after_backward(unit)

    def _reshards_after_backward(self, unit: int) -> bool:
        return self.reshard_after_backward[unit] if self.reshard_after_backward else True

    def is_on_host(self, unit: int) -> bool:
        """Whether the unit is offloaded."""
        return self.on_host[unit] if self.on_host else False

    def optimizer_tier(self, unit: int) -> StateTier:
        """Where the optimizer state of a unit is whose parameters are on the device; of others it is with them."""
        off_device = bool(self.optimizer_tiers) and not self.is_on_host(unit)
        return self.optimizer_tiers[unit] if off_device else StateTier.DEVICE

    def is_aliased(self, unit: int) -> bool:
        """Whether the unit is gathered in place."""
        return self.aliased[unit] if self.aliased else False

    @property
    def reduces(self) -> bool:
        """Whether this micro-batch reduces gradients at all."""
        return self.gradient_sync is not GradientSync.LAST_MICRO_BATCH or self.micro_batch.is_last

    def all_reduces(self, unit: int) -> bool:
        """Whether this micro-batch finishes the unit's reduction over replicas."""
        return self.replicate(unit) > 1 and not (self._sums_partially(unit) and not self.micro_batch.is_last)

    def finds_sharded_gradients(self, unit: int) -> bool:
        """Whether earlier micro-batches left sharded gradients of the unit to add to."""
        if self.micro_batch.is_first or self.gradient_sync is GradientSync.LAST_MICRO_BATCH:
            return False
        return not self._sums_partially(unit)

    def finds_partial_sums(self, unit: int) -> bool:
        """Whether earlier micro-batches left reduce-scattered gradients of the unit that no all-reduce has seen."""
        return self._sums_partially(unit) and not self.micro_batch.is_first

    def _sums_partially(self, unit: int) -> bool:
        return self.gradient_sync is GradientSync.ALL_REDUCE_ON_LAST and self.replicate(unit) > 1

    @property
    def treats_alike(self) -> bool:
        """Whether every micro-batch of a step does the same, apart from finding sharded gradients."""
        alike = self.gradient_sync is GradientSync.EVERY_MICRO_BATCH or (
            self.gradient_sync is GradientSync.ALL_REDUCE_ON_LAST
            and all(mesh.replicate == 1 for mesh in self.meshes)
        )
        return alike and all(self.reshard_after_backward)

    @property
    def finds_whole_gradients(self) -> bool:
        """Whether earlier micro-batches left unsharded gradients."""
        return self.gradient_sync is GradientSync.LAST_MICRO_BATCH and not self.micro_batch.is_first


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What the program is about, apart from the knobs."""

    partition: Partition
    sizes: tuple[UnitBytes, ...]
    """Per unit."""
    gradients: tuple[tuple[int, ...], ...]
    """Per call, bytes of each gradient in `gradient_order`."""
    deliveries: tuple[tuple[int, ...], ...]
    """Per call, of each gradient in `gradient_order`, the call in whose backward autograd delivers it."""
    optimizer_bytes: int
    optimizer_transient_bytes: int
    micro_batch: int
    sequence: int
