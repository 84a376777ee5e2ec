"""Plan: decisions, predictions and certificate (the hashed body), and what happened to it (envelope)."""

import hashlib
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.base import Bytes, Count, Document, Name, Nanoseconds, Part, Positive, Sha256
from planner.schema.decisions import Decisions
from planner.schema.request import ClientFeature, FixedChoice
from planner.schema.versions import VersionSpecifier


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
    basis: str = ""
    """By which rule, where source alone does not say it: which sizes were fitted, that it is a 99th percentile."""


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


class WeightsWay(Part):
    """A way to load or to save the weights of the whole model, and the memory that it takes at its peak.

    Loading: `every_rank` has the whole model before it is sharded; `rank_0` has it alone, the others build on the
    meta device and receive one tensor after another; with `shards` every rank builds on the meta device and reads
    what it holds. Saving: gathered `on_device`, gathered by `rank_0` into host memory, or every rank its `shards`.
    """

    task: Literal["load", "save"]
    way: Literal["every_rank", "rank_0", "shards", "on_device"]
    memory: Literal["host", "device"]
    """Host memory is that of a node."""
    needed_bytes: Bytes
    limit_bytes: Bytes = 0
    """What there is; 0 where the cluster does not say."""

    @property
    def fits(self) -> bool:
        """Whether it is enough, as far as that is known."""
        return not self.limit_bytes or self.needed_bytes <= self.limit_bytes


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
    weights: tuple[WeightsWay, ...] = ()
    """What the trainer does before and after training: how the weights can be loaded and saved."""


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
    choices_to_drop: tuple[FixedChoice, ...] = ()
    """A smallest set of the fixed choices without which some plan keeps the bounds."""
    features_to_add: tuple[ClientFeature, ...] = ()
    """A smallest set of knobs with which some plan keeps the bounds, of those that the client does not apply."""
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
    """`ed25519:KEY_ID:BASE64` over `signed_bytes`, by the key of the service that handed the plan out."""
    timings: Timings = Timings()


SIGNATURE_ALGORITHM = "ed25519"
"""First part of a signature, and of a public key as text."""


def signed_bytes(plan_id: str, lineage: str | None, revision: int | None) -> bytes:
    """What `Envelope.signature` signs: the body by its identity, and its place in a lineage."""
    return f"shardwright plan 1\n{plan_id}\n{lineage or ''}\n{'' if revision is None else revision}\n".encode()


def signature_key_id(public_key: bytes) -> str:
    """Names a raw public key in a signature."""
    return hashlib.sha256(public_key).hexdigest()[:16]


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
