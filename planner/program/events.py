"""What a program is made of: operations on streams, waits between streams, allocations in pools."""

from dataclasses import dataclass
from enum import StrEnum

from planner.program.choices import ALWAYS, Condition
from planner.schema import MemoryCategory


class Stream(StrEnum):
    """FSDP2's streams; each has its own allocator pool."""

    COMPUTE = "compute"
    COPY_IN = "copy_in"
    GATHER = "gather"
    REDUCE = "reduce"
    ALL_REDUCE = "all_reduce"
    OFFLOAD = "offload"
    """Copies of activations to the host and back; the client's own, its tensors are made on compute."""


class Link(StrEnum):
    """A communicator, or a network card that communicators share: its operations run one at a time."""

    SHARD = "shard"
    REPLICATE = "replicate"
    REDUCE = "reduce_link"
    """Reduce-scatters with a communicator of their own that others do not slow down."""


class Phase(StrEnum):
    """Part of a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"


class OperationKind(StrEnum):
    """What an operation does."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    HOST_TO_DEVICE = "host_to_device"
    """Shards of an offloaded unit, before their copy-in."""
    COPY_IN = "all_gather_copy_in"
    ALL_GATHER = "all_gather"
    COPY_OUT = "all_gather_copy_out"
    MARK = "mark"
    """No work: the point that the stream has reached, which others wait for; launches nothing."""
    RESHARD = "reshard"
    """Copies of the part that this rank keeps after forward when it reshards to fewer ranks."""
    ACCUMULATE = "accumulate"
    """Whole gradients kept, added or made of zeros."""
    CHUNK_CAT = "chunk_cat"
    DIVIDE = "divide"
    """Division before a float16 reduction."""
    REDUCE_SCATTER = "reduce_scatter"
    LOCAL_REDUCE = "local_reduce"
    """The copy that stands for a reduce-scatter over a single rank."""
    ALL_REDUCE = "all_reduce"
    POST_REDUCE = "post_reduce"
    OFFLOAD = "offload"
    """Sharded gradients to the host."""
    ACTIVATION_OUT = "activation_out"
    """What a call keeps to the host."""
    ACTIVATION_IN = "activation_in"
    """The same back to the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Work on one stream. `waits` are event indices of operations that it follows besides its stream's order."""

    kind: OperationKind
    owner: str
    """Unit or call that it belongs to."""
    unit: int
    """Unit that FSDP2 works for; for a call the unit whose pass it runs in."""
    phase: Phase
    stream: Stream
    duration_ns: int
    size_bytes: int = 0
    """Shards copied in or kept, bytes gathered or accumulated, input of a reduction or of the division before it,
    bytes moved from or to the host; 0 for calls and for what follows a reduction on the device."""
    launches: int = 1
    link: Link | None = None
    waits: tuple[int, ...] = ()
    host_waits: bool = False
    """The CPU waits for its end before it issues anything else (`.item()`)."""
    when: Condition = ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Later operations of `stream` follow `operation` (an event index); void when that operation is absent."""

    stream: Stream
    operation: int
    when: Condition = ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The CPU waits for the end of `operation` (an event index) before it issues anything else."""

    operation: int
    when: Condition = ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """`buffer` comes to life in the pool of `stream`."""

    buffer: str
    stream: Stream
    category: MemoryCategory
    size_bytes: int
    moment: str
    when: Condition = ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """`buffer` returns to its pool; void when it is not alive."""

    buffer: str
    when: Condition = ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """An allocation point inside a call: these bytes are alive for a moment, on the compute pool."""

    parts: tuple[tuple[MemoryCategory, int], ...]
    moment: str
    when: Condition = ALWAYS

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(size for _, size in self.parts)


Event = Operation | Wait | HostWait | Allocate | Free | Touch


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One micro-batch in the order in which the CPU issues it, followed by the optimizer step's allocations."""

    events: tuple[Event, ...]
    launch_ns: int
