"""How long the threads of this process stood in line for their core: a busy machine must not pass for a slow plan.

The kernel counts for each thread how long it could have run but did not (`schedstat`, second number). Transfers and
the computation of one rank share a core, so that some of it is the rank's own doing; more than `MOST` is not.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

MOST = 0.04
"""Share of a stretch that its threads may wait in all, for the stretch to count as undisturbed."""
TRIES = 3
"""How many times as often something is measured, at most, to find it undisturbed."""
T = TypeVar("T")


class Interference:
    """Of this process."""

    def __init__(self) -> None:
        self._began_ns = self._waited_ns = 0

    def begin(self) -> None:
        """A stretch begins."""
        self._waited_ns = _waited_ns()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> float:
        """Waiting of all threads in the stretch, as a share of it."""
        took_ns = time.perf_counter_ns() - self._began_ns
        return max(0, _waited_ns() - self._waited_ns) / took_ns


def _waited_ns() -> int:
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1])
        except OSError:  # the thread has ended
            continue
    return total


def least_disturbed(run: Callable[[], T], rounds: int) -> list[tuple[float, T]]:
    """So many undisturbed results, each with its share, or the least disturbed ones of `TRIES` as many runs.

    All ranks call it alike, and agree: the most disturbed of them counts.
    """
    watch = Interference()
    found: list[tuple[float, T]] = []
    for _ in range(TRIES * rounds):
        dist.barrier()
        watch.begin()
        result = run()
        found.append((most_of_ranks(watch.end()), result))
        if sum(share <= MOST for share, _ in found) >= rounds:
            break
    return sorted(found, key=lambda one: one[0])[:rounds]


def most_of_ranks(value: float) -> float:
    """The highest of all ranks."""
    highest = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest.item()
