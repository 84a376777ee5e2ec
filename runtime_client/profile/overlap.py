"""How compute and communication slow each other down, and whether two communicators run side by side.

[Note: shares] With `alone` and `beside` the times of the same work, the share of the speed that is lost is
`1 - alone / beside`, never below 0. The other work runs all the while.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist

from runtime_client.profile.clock import StreamTimer, host_ns, synchronize
from runtime_client.profile.collectives import Transfer
from runtime_client.profile.world import Level, World

_ROUNDS = 5
_SIZE_BYTES = {"cpu": 2**24, "cuda": 2**28}
_WIDTH = {"cpu": 384, "cuda": 4096}
_COMPUTE_NS = 50_000_000
_SIDE_BY_SIDE = 1.15
"""Two collectives that take no longer than so many times the longer one run at full speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Shares of the speed that are lost, and whether collectives of two communicators overlap."""

    compute_slowdown: float
    communication_slowdown: float
    concurrent_collectives: bool


def measure_overlap(world: World, level: Level) -> Overlap:
    """Over the groups of a level; every rank calls it alike."""
    device = world.device
    gather = Transfer("all_gather", level, _SIZE_BYTES[device.type], device)
    compute = _compute(device)
    alone, beside = _compute_times(world, gather, compute)
    comm_alone, comm_beside = _communication_times(world, gather, compute)
    return Overlap(
        compute_slowdown=_share(alone, beside),
        communication_slowdown=_share(comm_alone, comm_beside),
        concurrent_collectives=_is_concurrent(world, level, gather),
    )


def _share(alone_ns: int, beside_ns: int) -> float:
    return round(max(0.0, 1 - alone_ns / max(1, beside_ns)), 3)


def _compute(device: torch.device) -> Callable[[], None]:
    """About `_COMPUTE_NS` of matrix products."""
    width = _WIDTH[device.type]
    matrix = torch.randn(width, width, device=device)
    product = torch.empty_like(matrix)

    def once() -> None:
        torch.mm(matrix, matrix, out=product)

    once()
    times = max(1, _COMPUTE_NS // max(1, min(host_ns(device, once) for _ in range(3))))

    def compute() -> None:
        for _ in range(times):
            once()

    return compute


def _compute_times(world: World, gather: Transfer, compute: Callable[[], None]) -> tuple[int, int]:
    """Compute alone, and with gathers in flight from before it begins until after it ends."""
    one_ns = _time_of(world, gather)
    num_gathers = world.agreed(1 + 3 * _COMPUTE_NS // max(1, one_ns))
    alone, beside = [], []
    for _ in range(_ROUNDS):
        world.wait()
        alone.append(host_ns(world.device, compute))
        world.wait()
        works = [gather.start() for _ in range(num_gathers)]
        beside.append(_on_own_stream(world.device, compute))
        for work in works:
            work.wait()
        synchronize(world.device)
    return _slowest_median(world, alone), _slowest_median(world, beside)


def _on_own_stream(device: torch.device, compute: Callable[[], None]) -> int:
    """Time of compute without waiting for what other streams do."""
    if device.type == "cpu":
        return host_ns(device, compute)
    with StreamTimer() as timer:
        compute()
    return timer.duration_ns()


def _communication_times(world: World, gather: Transfer, compute: Callable[[], None]) -> tuple[int, int]:
    """A gather alone, and while this rank computes until it has ended."""
    alone, beside = [], []
    for _ in range(_ROUNDS):
        alone.append(_time_of(world, gather))
        world.wait()
        beside.append(_gather_beside(world.device, gather, compute))
    return _slowest_median(world, alone), _slowest_median(world, beside)


def _time_of(world: World, transfer: Transfer) -> int:
    world.wait()
    return host_ns(world.device, transfer.run)


def _gather_beside(device: torch.device, gather: Transfer, compute: Callable[[], None]) -> int:
    if device.type != "cpu":
        return _gather_beside_on_stream(gather, compute)
    ended_ns: list[int] = []
    start_ns = time.perf_counter_ns()
    work = gather.start()

    def wait() -> None:
        work.wait()
        ended_ns.append(time.perf_counter_ns())

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not ended_ns:
        compute()
    waiting.join()
    return ended_ns[0] - start_ns


def _gather_beside_on_stream(gather: Transfer, compute: Callable[[], None]) -> int:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    compute()
    with torch.cuda.stream(side), StreamTimer() as timer:
        gather.start().wait()
    compute()
    torch.cuda.synchronize()
    return timer.duration_ns()


def _is_concurrent(world: World, level: Level, gather: Transfer) -> bool:
    """A gather and a reduce-scatter over two communicators, alone and together."""
    if level.num_ranks != world.num_ranks:
        return False
    second = replace(level, group=dist.new_group(list(range(world.num_ranks))))
    reduction = Transfer("reduce_scatter", second, gather.size_bytes, world.device)

    def both() -> None:
        for work in (gather.start(), reduction.start()):
            work.wait()

    times: dict[Callable[[], None], list[int]] = {gather.run: [], reduction.run: [], both: []}
    for _ in range(_ROUNDS):
        for run, samples in times.items():
            world.wait()
            samples.append(host_ns(world.device, run))
    dist.destroy_process_group(second.group)
    *alone, together = (_slowest_median(world, samples) for samples in times.values())
    return together <= _SIDE_BY_SIDE * max(alone)


def _slowest_median(world: World, samples: list[int]) -> int:
    return round(median(world.slowest(samples)))
