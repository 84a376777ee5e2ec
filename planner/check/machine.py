"""Virtual device: clocks of streams, links and the issuing CPU, and byte counters of device pools and host."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from planner.schema.cluster import HostRuns
from planner.schema.plan import MemoryCategory


class Stream(StrEnum):
    """Streams of the compute device; each has its own allocator pool."""

    COMPUTE = "compute"
    COPY_IN = "copy_in"
    GATHER = "gather"
    REDUCE = "reduce"
    ALL_REDUCE = "all_reduce"
    OFFLOAD = "offload"
    """The client's own, for copies of activations; it allocates nothing on the device."""


class Link(StrEnum):
    """Resources on which collectives follow each other in issue order."""

    SHARD = "shard"
    REDUCE = "reduce"
    REPLICATE = "replicate"


class Machine:
    """Clocks in nanoseconds and live bytes of one rank, advanced in issue order."""

    def __init__(self, launch_ns: int, host_runs: HostRuns = HostRuns.NOTHING) -> None:
        self.host_runs = host_runs
        self.cpu_ns = 0
        self.pool_peaks: Counter[Stream] = Counter()
        self.allocated_peak = 0
        self.categories_at_peak: dict[MemoryCategory, int] = {}
        self.host_peak_bytes = 0
        self._launch_ns = launch_ns
        self._streams: Counter[Stream] = Counter()
        self._links: Counter[Link] = Counter()
        self._pools: Counter[Stream] = Counter()
        self._categories: Counter[MemoryCategory] = Counter()
        self._host_bytes = 0

    def restart_clocks(self) -> None:
        """Begin a micro-batch with everything idle; memory stays as it is."""
        self.cpu_ns = 0
        self._streams.clear()
        self._links.clear()

    @property
    def end_ns(self) -> int:
        """When compute has done all of its waits and the CPU has issued everything."""
        return max(self.time_ns(Stream.COMPUTE), self.cpu_ns)

    def run(self, stream: Stream, duration_ns: int, launches: int = 1, link: Link | None = None) -> int:
        """Issue one operation and return the time of its end."""
        issued = self.cpu_ns
        start = max(self._streams[stream], issued + (self._launch_ns if launches else 0))
        if link is not None:
            start = max(start, self._links[link])
        self.cpu_ns = issued + launches * self._launch_ns
        end = max(start + duration_ns, self.cpu_ns)
        self._streams[stream] = end
        if link is not None:
            self._links[link] = end
        if self.host_runs is HostRuns.EVERYTHING or (self.host_runs is HostRuns.KERNELS and link is None):
            self.host_waits(end)
        return end

    def host_waits(self, event_ns: int) -> None:
        """The CPU issues nothing before the event."""
        self.cpu_ns = max(self.cpu_ns, event_ns)

    def wait(self, stream: Stream, event_ns: int) -> None:
        """Later operations of the stream start no earlier than the event."""
        self._streams[stream] = max(self._streams[stream], event_ns)
        if stream is Stream.COMPUTE and self.host_runs is HostRuns.KERNELS:
            self.host_waits(event_ns)

    def wait_stream(self, stream: Stream, other: Stream) -> None:
        """Later operations of the stream start after all that the other stream has been given."""
        self.wait(stream, self._streams[other])

    def time_ns(self, stream: Stream) -> int:
        """When everything that the stream has been given so far is done."""
        return self._streams[stream]

    def live_bytes(self, pool: Stream) -> int:
        """Bytes allocated in the pool now."""
        return self._pools[pool]

    def allocate(self, pool: Stream, category: MemoryCategory, size_bytes: int) -> None:
        """Take bytes from a pool."""
        self._pools[pool] += size_bytes
        self._categories[category] += size_bytes
        self._note_peak(pool)

    def free(self, pool: Stream, category: MemoryCategory, size_bytes: int) -> None:
        """Give bytes back to their pool."""
        self._pools[pool] -= size_bytes
        self._categories[category] -= size_bytes
        assert self._pools[pool] >= 0, f"pool {pool} freed more than it held"
        assert self._categories[category] >= 0, f"category {category} freed more than it held"

    def touch(self, pool: Stream, sizes: Mapping[MemoryCategory, int]) -> None:
        """Hold bytes for an instant."""
        for category, size_bytes in sizes.items():
            self._pools[pool] += size_bytes
            self._categories[category] += size_bytes
        self._note_peak(pool)
        for category, size_bytes in sizes.items():
            self.free(pool, category, size_bytes)

    def allocate_host(self, size_bytes: int) -> None:
        """Take host memory for the rest of the step."""
        self._host_bytes += size_bytes
        self.touch_host(0)

    def free_host(self, size_bytes: int) -> None:
        """Give host memory back."""
        self._host_bytes -= size_bytes

    def touch_host(self, size_bytes: int) -> None:
        """Hold host memory for an instant."""
        self.host_peak_bytes = max(self.host_peak_bytes, self._host_bytes + size_bytes)

    def _note_peak(self, pool: Stream) -> None:
        self.pool_peaks[pool] = max(self.pool_peaks[pool], self._pools[pool])
        allocated = self._pools.total()
        if allocated > self.allocated_peak:
            self.allocated_peak = allocated
            self.categories_at_peak = {name: size for name, size in self._categories.items() if size}
