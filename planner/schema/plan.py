"""Plan: decisions, layouts, predictions and certificate (the hashed body), and what happened to it (envelope)."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.base import Bytes, Count, Document, DType, ModulePath, Name, Nanoseconds, Part, Positive, Sha256
from planner.schema.model import StateTier
from planner.schema.request import ClientFeature
from planner.schema.versions import VersionSpecifier
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


class StepBreakdown(Part):
    """Where the time of one optimizer step goes; the parts add up to `total_ns`."""

    compute_ns: Nanoseconds = 0
    recompute_ns: Nanoseconds = 0
    copy_ns: Nanoseconds = 0
    """Copy-in and copy-out of collectives that the compute stream runs."""
    exposed_all_gather_ns: Nanoseconds = 0
    exposed_reduce_scatter_ns: Nanoseconds = 0
    exposed_all_reduce_ns: Nanoseconds = 0
    exposed_host_copy_ns: Nanoseconds = 0
    """The device waits for copies from or to the host."""
    exposed_launch_ns: Nanoseconds = 0
    """The device waits for the CPU to issue work."""
    optimizer_ns: Nanoseconds = 0
    total_ns: Nanoseconds = 0


class MemoryCategory(StrEnum):
    """What device bytes are for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    UNSHARDED_PARAMETERS = "unsharded_parameters"
    UNSHARDED_GRADIENTS = "unsharded_gradients"
    GATHER_BUFFERS = "gather_buffers"
    REDUCE_BUFFERS = "reduce_buffers"
    ACTIVATIONS = "activations"
    TRANSIENTS = "transients"
    BUFFERS = "buffers"


class MemoryPeak(Part):
    """Device memory of one rank at its worst moment."""

    pools_bytes: dict[str, Bytes] = {}
    """Peak of each allocator pool (one per stream); their sum is what the budget bounds."""
    reserved_bytes: Bytes
    """Sum of the pool peaks."""
    allocated_bytes: Bytes
    """Peak of the sum: what `MemTracker` and `max_memory_allocated` show."""
    by_category_bytes: dict[MemoryCategory, Bytes] = {}
    """Categories at the moment of the allocated peak; they add up to it."""
    optimizer_step_bytes: Bytes = 0
    """Allocated at the optimizer step."""
    first_micro_batch_bytes: Bytes = 0
    """Allocated peak of forward and backward in the first step, while the optimizer has no state: what a profile of
    that step shows, and less than the peak."""
    segments_by_pool_bytes: dict[str, Bytes] = {}
    """What the caching allocator holds for each pool with default settings, once steps repeat: sizes are rounded,
    segments of a pool serve no other, and free ones may be too small for the next request."""
    segments_bytes: Bytes = 0
    """Sum over the pools: what `memory_reserved` shows on a device with room. When it runs out of memory, the
    allocator gives free segments back first, so that a plan may fit with less."""
    moment: str = ""
    """The moment in words, e.g. `backward of layers.7`."""
    unit: str = ""


class MemoryBudget(Part):
    """Device memory, less what training tensors cannot have."""

    device_bytes: Bytes
    context_bytes: Bytes = 0
    communicators_bytes: Bytes = 0
    num_communicators: Count = 0
    fragmentation_bytes: Bytes = 0
    other_bytes: Bytes = 0
    budget_bytes: Bytes


class NumberSource(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    ASSUMED = "assumed"


class SourcedNumber(Part):
    """One duration, bandwidth or reserve that the plan rests on."""

    name: str
    value: Annotated[int, Field(ge=0)]
    unit: Literal["ns", "bytes", "bytes_per_s", "per_s"]
    source: NumberSource


class Predictions(Part):
    """What the step will cost."""

    step_time_ns: Nanoseconds
    breakdown: StepBreakdown
    peak: MemoryPeak
    budget: MemoryBudget
    host_bytes: Bytes = 0
    host_reserved_bytes: Bytes = 0
    """`host_bytes` with pinned tensors rounded up to powers of two, as their allocator does."""
    host_budget_bytes: Bytes = 0
    """Memory of the host for one rank; 0 when the cluster does not say."""
    nvme_bytes: Bytes = 0
    tokens_per_s: Annotated[float, Field(ge=0)] = 0.0
    model_flops_utilization: Annotated[float, Field(ge=0)] = 0.0
    num_all_gathers: Count = 0
    """In one optimizer step, over all its micro-batches."""
    num_reduce_scatters: Count = 0
    num_all_reduces: Count = 0
    sources: tuple[SourcedNumber, ...] = ()


class Certificate(Part):
    """The proof: no plan in the searched space is faster than `lower_bound`, in the stated cost model."""

    objective: Literal["step_time_ns", "peak_memory_bytes"] = "step_time_ns"
    value: Count
    lower_bound: Count
    gap: Annotated[float, Field(ge=0)]
    status: Literal["optimal", "bounded", "provisional"]
    """`optimal` when value equals the bound; `bounded` when the search ended with a gap."""
    num_candidates: Count = 0
    """Global choices (mesh, grouping) that the search covered."""
    num_pruned: Count = 0
    """Of these, discarded by their bound alone."""
    checker: Literal["passed", "not_run"] = "not_run"
    """The independent checker recomputed time, memory and feasibility."""
    deterministic_time: Annotated[float, Field(ge=0)] = 0.0
    wall_clock_struck: bool = False
    solver: str = ""


class Alternative(Part):
    """A plan that was not chosen, and what it would cost."""

    change: str
    step_time_ns: Nanoseconds | None = None
    reserved_bytes: Bytes | None = None
    fits: bool


class ShadowValue(Part):
    """What a looser limit is worth: memory saves time, and time saves memory.

    Mesh, grouping and runtime settings stay those of the plan; with others it may be worth more.
    """

    limit: Literal["memory_bytes", "step_time_ns"]
    more: Positive
    """By how much the limit is loosened, in its own unit."""
    saves_at_least: Count
    """Some plan has so much less of what is minimised: ns where memory is the limit, bytes where time is."""
    saves_at_most: Count
    """No plan has more than so much less."""


class Reasons(Part):
    """Why the plan is what it is, for people."""

    binds: str = ""
    """What limits the plan: a memory category at a moment, a stream, or nothing."""
    notes: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    """The best plans found under other global choices."""
    why_not: tuple[Alternative, ...] = ()
    """The best plans found under the same global choice with one kind of decision or one setting changed."""
    shadow: tuple[ShadowValue, ...] = ()


class Infeasibility(Part):
    """Why nothing fits, and the smallest change that would."""

    reason: str
    binding: MemoryCategory | Literal["batch", "world_size", "step_time"]
    needed_bytes: Bytes | None = None
    """Least memory for tensors over all plans."""
    budget_bytes: Bytes | None = None
    smallest_device_memory_bytes: Bytes | None = None
    """Device memory with which the same cluster would do."""
    fewest_ranks: Count | None = None
    """Ranks of the same kind of device with which some plan fits; None when no number tried fits."""
    advice: tuple[str, ...] = ()


class InputHashes(Part):
    """Identity of each input."""

    model: Sha256
    cluster: Sha256
    workload: Sha256
    profile: Sha256 | None = None
    request: Sha256


class Requirements(Part):
    """What applying the plan needs."""

    client_features: tuple[ClientFeature, ...] = ()
    torch: VersionSpecifier = ">=2.11"
    """PEP 440 specifier."""


class PlanBody(Document):
    """The hashed part of a plan: same request, planner and platform, same body."""

    kind: ClassVar[str] = "plan"

    schema_version: Literal[1] = 1
    name: Name
    outcome: Literal["feasible", "infeasible"]
    model_fingerprint: Sha256
    world_size: Positive
    decisions: Decisions | None = None
    predictions: Predictions | None = None
    certificate: Certificate | None = None
    reasons: Reasons = Reasons()
    infeasibility: Infeasibility | None = None
    inputs: InputHashes
    requires: Requirements = Requirements()
    planner_version: Name


class Timings(Part):
    """Wall-clock seconds spent; not part of the identity."""

    total_s: float = 0.0
    search_s: float = 0.0


class Envelope(Part):
    """What happened to a plan; not part of its identity."""

    plan_id: Sha256
    created_at: str = ""
    lineage: str | None = None
    revision: Count | None = None
    why: str = ""
    job_id: str | None = None
    signature: str | None = None
    timings: Timings = Timings()


class Plan(Document):
    """A body with its envelope."""

    kind: ClassVar[str] = "plan_envelope"

    body: PlanBody
    envelope: Envelope

    @classmethod
    def of(cls, body: PlanBody, *, timings: Timings | None = None, created_at: str = "") -> "Plan":
        """Wrap a body, computing its identity."""
        return cls(
            body=body,
            envelope=Envelope(plan_id=body.content_hash(), timings=timings or Timings(), created_at=created_at),
        )

    def verify(self) -> bool:
        """Whether the envelope's identity is that of the body."""
        return self.body.content_hash() == self.envelope.plan_id
