"""How long a rank stood in line for its core: a busy machine must not pass for a slow plan.

The kernel counts for each thread how long it could have run but did not (`schedstat`, second number). That of the
thread which computes is looked at: the threads of the transfers share its core, and take little of it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

MOST = 0.04
"""Share of a stretch that the thread may wait, for the stretch to count as undisturbed."""
TRIES = 2
"""How many times as often something is measured, at most, to find it undisturbed."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
T = TypeVar("T")


class Interference:
    """Of the thread that asks."""

    def __init__(self) -> None:
        self._began_ns = self._waited_ns = 0

    def begin(self) -> None:
        """A stretch begins."""
        self._waited_ns = _waited_ns()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> float:
        """Waiting in the stretch, as a share of it."""
        took_ns = time.perf_counter_ns() - self._began_ns
        return max(0, _waited_ns() - self._waited_ns) / took_ns


def _waited_ns() -> int:
    return int(_SCHEDSTAT.read_text().split()[1])


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
