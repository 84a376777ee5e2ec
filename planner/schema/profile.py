"""Profile: measured durations, bandwidths and reserves. A roofline fills in only what is missing."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.base import Bytes, Count, Document, Fraction, Name, Nanoseconds, Part, Positive, Sha256

Text = Annotated[str, Field(max_length=200)]


class Provenance(Part):
    """Where a measurement comes from."""

    device: str = ""
    driver: str = ""
    torch_version: str = ""
    date: str = ""
    num_samples: Count = 0
    host: Text = ""
    """Name of the machine; of several, rank 0's."""


class Quantiles(Part):
    """Spread of the samples whose median is the number that this belongs to, in the same unit."""

    p10: Count
    p99: Count
    num_samples: Count = 0


class CallMeasurement(Part):
    """Duration of one call kind at one point; a missing pass is taken from the roofline."""

    kind: Name
    """Key of `ModelDescription.kinds`."""
    micro_batch: Positive
    sequence: Positive
    forward_ns: Nanoseconds | None = None
    backward_ns: Nanoseconds | None = None
    recompute_ns: Nanoseconds | None = None
    provenance: Provenance = Provenance()
    block: Sha256 | None = None
    """What the kind is, whatever it is called (`planner.schema.block_hash`). Where it is given, the measurement is
    of every kind with this hash and of no other; without it, of the kind of this name."""
    forward_quantiles: Quantiles | None = None
    backward_quantiles: Quantiles | None = None
    recompute_quantiles: Quantiles | None = None
    kept_bytes: Bytes | None = None
    """Activations that autograd keeps from forward to backward, the call's inputs among them."""
    forward_transient_bytes: Bytes | None = None
    """Most bytes alive during forward beyond inputs, parameters and buffers."""
    backward_transient_bytes: Bytes | None = None
    """Most bytes alive during backward beyond inputs, parameters and buffers; gradients are among them."""


class CurvePoint(Part):
    """Time of one collective or copy of a given size."""

    size_bytes: Bytes
    duration_ns: Nanoseconds
    quantiles: Quantiles | None = None


class CollectiveMeasurement(Part):
    """Times of one collective over a group shape; `size_bytes` is the full (gathered) buffer."""

    collective: Literal["all_gather", "reduce_scatter", "all_reduce"]
    num_ranks: Positive
    num_nodes: Positive = 1
    points: Annotated[tuple[CurvePoint, ...], Field(min_length=1)]
    provenance: Provenance = Provenance()


class CopyMeasurement(Part):
    """Sustained bandwidth between memories: of one rank's device, or of all NVMe drives of a host together."""

    direction: Literal["host_to_device", "device_to_host", "device_to_device", "nvme_read", "nvme_write"]
    bytes_per_s: Positive
    provenance: Provenance = Provenance()
    pinned: bool = True
    """The host's memory was pinned; plans count on pinned copies alone."""
    together: bool = False
    """The other direction ran at the same time."""
    size_bytes: Bytes | None = None
    """Of one copy."""
    quantiles: Quantiles | None = None
    """Nanoseconds of one copy of `size_bytes`."""


class Profile(Document):
    """Everything measured for a model on a cluster; any part may be missing."""

    kind: ClassVar[str] = "profile"

    schema_version: Literal[1] = 1
    name: Name = "profile"
    calls: tuple[CallMeasurement, ...] = ()
    collectives: tuple[CollectiveMeasurement, ...] = ()
    copies: tuple[CopyMeasurement, ...] = ()
    launch_ns: Nanoseconds | None = None
    """CPU time to issue one kernel."""
    optimizer_parameters_per_s: Positive | None = None
    """Parameters per second that one rank's optimizer step updates on the device."""
    cpu_optimizer_parameters_per_s_per_core: Positive | None = None
    context_bytes: Bytes | None = None
    communicator_bytes: Bytes | None = None
    concurrent_collectives: bool = False
    """Measured: collectives of two communicators over the shard axis run side by side at full speed."""
    compute_slowdown_under_communication: Fraction = 0.0
    communication_slowdown_under_compute: Fraction = 0.0
    cluster: Text = ""
    """Name of the cluster that was measured."""
    model_fingerprint: Sha256 | None = None
    """Of the model whose calls were measured."""
    optimizer: Text = ""
    """Optimizer and implementation that the rates of optimizer steps are of, as `adamw/foreach`; empty: of the
    workload's, whatever it is."""
    provenance: Provenance = Provenance()
    """Of the numbers that stand alone, such as `launch_ns`."""
    quantiles: dict[Name, Quantiles] = {}
    """Of these numbers, by the name of their field and in its unit."""
