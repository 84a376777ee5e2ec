"""ClusterDescription: node groups, devices, links and what they hold back."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.base import Bytes, Count, Document, DType, Fraction, Name, Nanoseconds, Part, Positive


class HostRuns(StrEnum):
    """What the thread that issues operations carries out itself, before it issues the next one."""

    NOTHING = "nothing"
    """An accelerator: all operations run on its streams."""
    KERNELS = "kernels"
    """A CPU with asynchronous collectives: calls and copies."""
    EVERYTHING = "everything"
    """A CPU with FSDP2's own collectives on gloo: those too."""


class DeviceSheet(Part):
    """Data sheet of an accelerator, or of a CPU that runs gloo ranks."""

    name: Name
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    memory_bytes: Positive
    memory_bytes_per_s: Positive
    flops_per_s: Annotated[dict[DType, Positive], Field(min_length=1)]
    """Dense matrix FLOP/s by element type."""
    vector_flops_per_s: Positive | None = None
    host_link_bytes_per_s: Positive | None = None
    """Host to device, one direction."""
    launch_ns: Nanoseconds = 5_000
    """CPU time to issue one kernel."""
    context_bytes: Bytes = 0
    """Memory that the driver context takes."""
    host_runs: HostRuns = HostRuns.NOTHING
    source: str = ""


class LinkSheet(Part):
    """A network level as one device sees it, per direction."""

    name: Name
    bytes_per_s: Positive
    latency_ns: Nanoseconds
    source: str = ""


class NodeGroup(Part):
    """Equal nodes."""

    num_nodes: Positive
    devices_per_node: Positive
    device: Name | DeviceSheet
    """A name in the catalog, or a data sheet."""
    device_memory_bytes: Positive | None = None
    """Usable device memory where it differs from the data sheet."""
    host_memory_bytes: Bytes = 0
    host_cores: Count = 0
    nvme_bytes: Bytes = 0
    nvme_read_bytes_per_s: Bytes = 0
    nvme_write_bytes_per_s: Bytes = 0
    intra_node: Name | LinkSheet
    """Link between devices of a node."""


class Reserve(Part):
    """Device memory that training tensors cannot have."""

    context_bytes: Bytes | None = None
    """Driver context; None takes the device's."""
    communicator_bytes: Bytes = 690_000_000
    """Each communicator of more than two ranks."""
    pair_communicator_bytes: Bytes = 550_000_000
    """Each communicator of two ranks."""
    fragmentation: Fraction = 0.04
    """Share of the device lost to fragmentation."""
    other_bytes: Bytes = 0


class Tenancy(Part):
    """How the network is shared with other jobs."""

    exclusive: bool = True
    bandwidth_share: Fraction = 1.0


class ClusterDescription(Document):
    """Devices and links. Ranks are numbered node by node."""

    kind: ClassVar[str] = "cluster"

    schema_version: Literal[1] = 1
    name: Annotated[Name, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
    """What people call it, also in addresses of the service: anything but control characters."""
    node_groups: Annotated[tuple[NodeGroup, ...], Field(min_length=1, max_length=64)]
    inter_node: Name | LinkSheet | None = None
    """Link of one device to other nodes; required with more than one node."""
    rail: Name | LinkSheet | None = None
    """Link between devices of equal index on different nodes, where it is better than `inter_node`."""
    reserve: Reserve = Reserve()
    tenancy: Tenancy = Tenancy()

    @property
    def num_devices(self) -> int:
        """Ranks of a job that takes the whole cluster."""
        return sum(group.num_nodes * group.devices_per_node for group in self.node_groups)

    @property
    def num_nodes(self) -> int:
        """Nodes of all groups."""
        return sum(group.num_nodes for group in self.node_groups)
