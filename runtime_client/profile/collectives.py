"""Times of all-gather, reduce-scatter and all-reduce by size, over the groups of each level of a mesh.

A sample repeats the collective until it lasts long enough to tell, and counts the slowest rank of all. Of the
sizes, the smallest comes first (latency), then the largest (bandwidth), then those between as long as time is left.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist

from runtime_client.profile.clock import host_ns
from runtime_client.profile.world import Level, World

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
COLLECTIVES: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce")

# Torch 2.13 renamed them.
_Run = Callable[..., dist.Work | None]
_gather: _Run = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce: _Run = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_reduce: _Run = dist.all_reduce

_SMALLEST_BYTES = 2**12
_LEAST_SAMPLE_NS = 2_000_000
_MOST_REPEATS = 200
_FEWEST_SAMPLES = 5
_MOST_SAMPLES = 50
_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSamples:
    """Samples of one collective over one shape of groups: nanoseconds by bytes of the full buffer."""

    collective: Collective
    num_ranks: int
    num_nodes: int
    times_ns: dict[int, list[int]] = field(default_factory=dict)


class Transfer:
    """A collective over the group of a level, with its buffers.

    Args:
        collective: which.
        level: its group.
        size_bytes: of the full buffer: float32, rounded up to a multiple of the group's ranks.
        device: where the buffers are.
    """

    def __init__(self, collective: Collective, level: Level, size_bytes: int, device: torch.device) -> None:
        self._collective = collective
        self._group = level.group
        per_rank = max(1, -(-size_bytes // (4 * level.num_ranks)))
        self._full = torch.zeros(per_rank * level.num_ranks, dtype=torch.float32, device=device)
        place = level.ranks.index(dist.get_rank())
        own = self._full.narrow(0, per_rank * place, per_rank)
        self._part = torch.empty_like(own) if collective == "reduce_scatter" else own

    @property
    def size_bytes(self) -> int:
        """Of the full buffer."""
        return self._full.nbytes

    def run(self) -> None:
        """Wait for it, as far as the host does."""
        self._begin(asynchronous=False)

    def start(self) -> dist.Work:
        """Return at once, with what to wait for."""
        work = self._begin(asynchronous=True)
        assert work is not None, "asynchronous collectives return one"
        return work

    def _begin(self, *, asynchronous: bool) -> dist.Work | None:
        match self._collective:
            case "all_gather":
                return _gather(self._full, self._part, group=self._group, async_op=asynchronous)
            case "reduce_scatter":
                return _reduce(self._part, self._full, group=self._group, async_op=asynchronous)
            case "all_reduce":
                return _all_reduce(self._full, group=self._group, async_op=asynchronous)


def measure_curve(
    world: World, collective: Collective, level: Level, *, largest_bytes: int, seconds: float
) -> CurveSamples:
    """One curve, for about so many seconds; every rank calls it alike."""
    found = CurveSamples(collective=collective, num_ranks=level.num_ranks, num_nodes=level.num_nodes)
    end = time.monotonic() + seconds
    sizes = list(_sizes(largest_bytes))
    for place, size_bytes in enumerate(sizes):
        left_s = max(0.0, end - time.monotonic()) / (len(sizes) - place)
        transfer = Transfer(collective, level, size_bytes, world.device)
        found.times_ns[transfer.size_bytes] = _samples(world, transfer.run, left_s)
        if place and world.agreed(int(time.monotonic() > end)):
            break
    return found


def _sizes(largest_bytes: int) -> Iterator[int]:
    yield _SMALLEST_BYTES
    size = largest_bytes
    while size > _SMALLEST_BYTES:
        yield size
        size //= 4


def _samples(world: World, run: Callable[[], object], seconds: float) -> list[int]:
    """Nanoseconds of one run, each the mean of some, on the slowest rank."""
    once_ns = 1
    for _ in range(_WARM_UPS):
        world.wait()
        once_ns = max(1, host_ns(world.device, run))
    repeats = world.agreed(min(_MOST_REPEATS, -(-_LEAST_SAMPLE_NS // once_ns)))
    wanted = round(seconds * 1e9 / (once_ns * repeats))
    num_samples = world.agreed(min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, wanted)))

    def repeated() -> None:
        for _ in range(repeats):
            run()

    samples = []
    for _ in range(num_samples):
        world.wait()
        samples.append(host_ns(world.device, repeated) // repeats)
    return world.slowest(samples)
