"""How long work takes on a device, without what the host needs to issue it.

[Note: issue ahead] On an accelerator the host fills a queue. Work that takes less time than its kernels take to
issue would show the host's time. A kernel that waits is queued first, so that the work is in the queue before the
device gets to it; plans count the host's time apart (`launch_ns`). On a CPU the host is the device.
"""

import time
from collections.abc import Callable
from typing import Self

import torch

_WAITING_CYCLES = 4_000_000
"""Of the kernel that waits: 2 to 3 ms, in which the host issues some hundred kernels."""

Work = Callable[[], object]


class Clock:
    """Times work on one device.

    Args:
        device: where the work runs.
        now_ns: the host's clock on a CPU; `time.thread_time_ns` leaves out what other processes took.
    """

    def __init__(self, device: torch.device, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._device = device
        self._now_ns = now_ns

    def time_ns(self, work: Work) -> int:
        """Nanoseconds of the work on the device."""
        if self._device.type == "cpu":
            return self._on_host(work)
        return self._on_stream(work)

    def _on_host(self, work: Work) -> int:
        start_ns = self._now_ns()
        work()
        return self._now_ns() - start_ns

    def _on_stream(self, work: Work) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(_WAITING_CYCLES)  # type: ignore[no-untyped-call]
        with StreamTimer() as timer:
            work()
        torch.cuda.synchronize(self._device)
        return timer.duration_ns()


class StreamTimer:
    """Times what is queued on the current stream while it is open."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        self._begin.record()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.record()

    def duration_ns(self) -> int:
        """Nanoseconds; waits until the work has ended."""
        self._end.synchronize()
        return round(float(self._begin.elapsed_time(self._end)) * 1e6)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done its work; a CPU has."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def host_ns(device: torch.device, work: Work) -> int:
    """Nanoseconds that the host waits for the work, the device's included."""
    synchronize(device)
    start_ns = time.perf_counter_ns()
    work()
    synchronize(device)
    return time.perf_counter_ns() - start_ns
