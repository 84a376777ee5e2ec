"""PlanRequest: all that decides a plan, and nothing about who asks."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.base import MAX_INTEGER, Bytes, Document, DType, Nanoseconds, Part, Positive, Sha256
from planner.schema.cluster import ClusterDescription
from planner.schema.model import ModelDescription
from planner.schema.profile import Profile
from planner.schema.workload import OptimizerImplementation, Workload


class ClientFeature(StrEnum):
    """A knob that the caller's client must be able to apply."""

    HYBRID_MESH = "hybrid_mesh"
    UNIT_MESH = "unit_mesh"
    PREFETCH = "prefetch"
    RESHARD_INTEGER = "reshard_integer"
    CHECKPOINT_FULL = "checkpoint_full"
    CHECKPOINT_SELECTIVE = "checkpoint_selective"
    GROUPED_UNITS = "grouped_units"
    RAGGED_LAYOUT = "ragged_layout"
    ALIAS_GATHERS = "alias_gathers"
    """Units with one ragged layout, gathered in place."""
    MUON_OWNERS = "muon_owners"
    """Muon through owners of whole matrices (`runtime_client.optimizers.Muon`)."""
    OFFLOAD = "offload"
    OPTIMIZER_OFFLOAD = "optimizer_offload"
    """Optimizer state in host memory, of units whose parameters are on the device (`AppliedPlan.optimizer`)."""
    OPTIMIZER_NVME = "optimizer_nvme"
    """The same on NVMe."""
    ACTIVATION_OFFLOAD = "activation_offload"
    REDUCE_SCATTER_BUFFERS = "reduce_scatter_buffers"
    SEPARATE_REDUCE_SCATTER_GROUP = "separate_reduce_scatter_group"
    ACCUMULATION = "accumulation"
    """The training loop says which micro-batch comes next (`AppliedPlan.begin_micro_batch`)."""


class Objective(StrEnum):
    """What is minimised."""

    STEP_TIME = "step_time"
    PEAK_MEMORY = "peak_memory"


class Limits(Part):
    """Bounds that a plan must keep."""

    memory_bytes: Bytes | None = None
    """Device memory for tensors; None derives it from the cluster and its reserves."""
    step_time_ns: Nanoseconds | None = None


class FixedChoice(Part):
    """A decision taken by the user; `knob` is e.g. `layers.*.reshard_after_forward`."""

    knob: Annotated[str, Field(min_length=1, max_length=500)]
    value: bool | Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)] | str


class SearchLimits(Part):
    """How hard to search. Deterministic units, so that the same request gives the same plan."""

    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    """Of CP-SAT; nothing else in a search is random."""
    deterministic_time: Annotated[float, Field(gt=0, le=100_000)] = 40.0
    """Of the whole search: seconds of CP-SAT, and what opening problems counts for."""
    gap: Annotated[float, Field(ge=0, lt=1)] = 0.005
    """Stop when (objective - bound) / objective is at most this."""
    wall_clock_s: Annotated[float, Field(gt=0, le=100_000)] = 600.0
    """Safety net; the certificate says when it struck."""


class PlanRequest(Document):
    """Model, cluster, workload and profile, with the objective and the limits of the search."""

    kind: ClassVar[str] = "request"

    schema_version: Literal[1] = 1
    model: ModelDescription
    cluster: ClusterDescription
    workload: Workload
    profile: Profile | None = None
    objective: Objective = Objective.STEP_TIME
    limits: Limits = Limits()
    fixed: Annotated[tuple[FixedChoice, ...], Field(max_length=10_000)] = ()
    search: SearchLimits = SearchLimits()
    client_features: tuple[ClientFeature, ...] | None = None
    """Knobs that may be used; None allows all that the planner knows."""
    micro_batches: Annotated[tuple[Positive, ...], Field(max_length=100)] = ()
    """Micro-batches that may be chosen besides `workload.micro_batch`; the global batch stays."""
    reduce_dtypes: Annotated[tuple[DType, ...], Field(max_length=10)] = ()
    """Types that gradients may be reduced in besides `workload.precision.reduce_dtype`."""
    optimizer_implementations: Annotated[tuple[OptimizerImplementation, ...], Field(max_length=10)] = ()
    """Implementations that the Adam groups may get besides the workload's own."""
    warm_start: Sha256 | None = None
    """Identity of an earlier plan whose decisions start the search."""
    robust: bool = False
    """Count on the 99th percentile of what links were measured to take, instead of the median: for shared ones."""


class RequestReferences(Part):
    """A request by reference: what a launcher posts. Each part is inline or the hash of a stored document."""

    model: ModelDescription | Sha256
    cluster: ClusterDescription | Sha256
    workload: Workload
    profile: Profile | Sha256 | Literal["newest"] | None = None
    """`newest`: the one stored last that measured most blocks of this model on a cluster of this name."""
    objective: Objective = Objective.STEP_TIME
    limits: Limits = Limits()
    fixed: Annotated[tuple[FixedChoice, ...], Field(max_length=10_000)] = ()
    search: SearchLimits = SearchLimits()
    client_features: tuple[ClientFeature, ...] | None = None
    micro_batches: Annotated[tuple[Positive, ...], Field(max_length=100)] = ()
    reduce_dtypes: Annotated[tuple[DType, ...], Field(max_length=10)] = ()
    optimizer_implementations: Annotated[tuple[OptimizerImplementation, ...], Field(max_length=10)] = ()
    warm_start: Sha256 | None = None
    robust: bool = False


__all__ = [
    "ClientFeature",
    "FixedChoice",
    "Limits",
    "Objective",
    "PlanRequest",
    "Positive",
    "RequestReferences",
    "SearchLimits",
]
