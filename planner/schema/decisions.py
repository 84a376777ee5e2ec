"""Decisions of a plan: all that the client needs to apply it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from planner.schema.base import Count, DType, ModulePath, Name, Part, Positive
from planner.schema.model import StateTier
from planner.schema.workload import OptimizerImplementation, Precision, Workload


class MeshPlan(Part):
    """Device mesh `(replicate, shard)`; one dimension when `replicate` is 1."""

    replicate: Positive = 1
    shard: Positive

    @property
    def num_ranks(self) -> int:
        """World size."""
        return self.replicate * self.shard


class LayoutEntry(Part):
    """Place of one parameter in a planned buffer."""

    parameter: Name
    """Its original name; any one of the names of a tied parameter."""
    offset_elements: Count
    num_elements: Count


class Layout(Part):
    """A ragged buffer over the ranks of the shard group; units without one use FSDP2's even dim-0 sharding."""

    name: Name
    dtype: DType
    """In which its parameters are stored."""
    shard_elements: Positive
    """Elements of each rank: rank r holds those from `r * shard_elements` on."""
    entries: tuple[LayoutEntry, ...]


class UnitPlan(Part):
    """One `fully_shard` call. Units are listed bottom-up, in the order of application; the root is last."""

    modules: Annotated[tuple[ModulePath, ...], Field(min_length=1)]
    """Modules of the unit; several for `fully_shard([a, b])`."""
    mesh: MeshPlan | None = None
    """Where it is not that of the plan; covers as many ranks. The root has none of its own."""
    reshard_after_forward: bool | Positive | None = None
    """As `fully_shard` takes it; None leaves FSDP2's default."""
    reshard_after_backward: bool = True
    """False keeps the unit gathered between the micro-batches of a step (`set_reshard_after_backward`)."""
    forward_prefetch: tuple[ModulePath, ...] = ()
    """First modules of the units for `set_modules_to_forward_prefetch`; empty means implicit prefetch."""
    backward_prefetch: tuple[ModulePath, ...] = ()
    parameter_tier: StateTier = StateTier.DEVICE
    optimizer_tier: StateTier = StateTier.DEVICE
    layouts: tuple[Name, ...] = ()
    """Buffers of the unit, each named in `Decisions.layouts`: one per storage dtype, requires_grad and optimizer
    group. Empty means FSDP2's even sharding."""
    alias_gathers: bool = False
    """Gather the unit into its one buffer itself, of which its parameters are views, without a copy-out."""
    num_parameters: Count = 0
    """Elements gathered by this unit (for reading; the client does not use it)."""


class ActivationPolicy(StrEnum):
    """What happens to the activations of a call."""

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"
    OFFLOAD = "offload"


class ActivationPlan(Part):
    """Activation checkpointing of one module; modules not listed keep all that autograd saves."""

    module: ModulePath
    policy: ActivationPolicy
    saved_ops: tuple[str, ...] = ()


class GradientSync(StrEnum):
    """When the micro-batches of a step reduce their gradients."""

    EVERY_MICRO_BATCH = "every_micro_batch"
    LAST_MICRO_BATCH = "last_micro_batch"
    """The others add to whole gradients (`set_requires_gradient_sync`)."""
    ALL_REDUCE_ON_LAST = "all_reduce_on_last_micro_batch"
    """The others reduce-scatter, and add to what waits for the all-reduce (`set_requires_all_reduce`)."""


class ShardDim(Part):
    """A parameter that is sharded on another dimension than the first (`shard_placement_fn`)."""

    parameter: Name
    dim: Positive


class MatrixOwner(Part):
    """A matrix that Muon's iteration needs whole, and the rank that gathers and updates it."""

    parameter: Name
    rank: Count
    """Within the shard group of its unit."""


class RuntimeKnobs(Part):
    """Settings that hold for the whole model."""

    reduce_scatter_max_input_buffers: Positive = 1
    separate_reduce_scatter_group: bool = False
    gradient_sync: GradientSync = GradientSync.EVERY_MICRO_BATCH
    reduce_scatter_unused_params: bool = False
    """Parameters that got no gradient are reduced as zeros."""
    post_optimizer_event: bool = False
    """Gathers of a step wait for the optimizer alone, not for all that the compute stream was given before."""


class Decisions(Part):
    """All that the client needs to apply a plan."""

    mesh: MeshPlan
    """Of every unit that has none of its own."""
    units: Annotated[tuple[UnitPlan, ...], Field(min_length=1)]
    activations: tuple[ActivationPlan, ...] = ()
    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    output_dtype: DType | None = None
    cast_forward_inputs: bool = True
    optimizer_implementation: OptimizerImplementation | None = None
    """Of the groups with Adam or AdamW; None leaves what the workload says."""
    micro_batch: Positive
    num_micro_batches: Positive
    runtime: RuntimeKnobs = RuntimeKnobs()
    layouts: tuple[Layout, ...] = ()
    shard_dims: tuple[ShardDim, ...] = ()
    """Parameters not listed are sharded on dimension 0."""
    forward_methods: tuple[Name, ...] = ()
    """Methods that gather as forward does (`register_fsdp_forward_method`), each after the path of its module:
    `generate` of the root, `encoder.encode`."""
    owners: tuple[MatrixOwner, ...] = ()
    """Of all of Muon's matrices, in the order in which each rank updates its own; none where torch's Muon does."""

    def mesh_of(self, unit: UnitPlan) -> MeshPlan:
        """The mesh that a unit is sharded over."""
        return unit.mesh or self.mesh

    @property
    def meshes(self) -> tuple[MeshPlan, ...]:
        """All that are used, each once: that of the plan, then others in the order of the units."""
        return tuple(dict.fromkeys((self.mesh, *map(self.mesh_of, self.units))))

    @property
    def precision(self) -> Precision:
        """Precision policy of all units."""
        return Precision(
            param_dtype=self.param_dtype,
            reduce_dtype=self.reduce_dtype,
            output_dtype=self.output_dtype,
            cast_forward_inputs=self.cast_forward_inputs,
        )

    def decided(self, workload: Workload) -> Workload:
        """The workload with what was decided about it: micro-batch, precision, and how its optimizer steps."""
        chosen = workload.model_copy(update={"micro_batch": self.micro_batch, "precision": self.precision})
        implementation = self.optimizer_implementation
        return chosen if implementation is None else chosen.with_implementation(implementation)
