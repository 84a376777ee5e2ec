"""What the steps of a training loop take, and their peak memory: one `Measurement` for each range of steps.

[Note: which time a step took]
Nothing is synchronised between the steps of a range, so that measuring costs nothing. A host that waits for its
device in every step sees each step as long as it is. One that runs ahead sees short steps, and the rest of the
device's time when the range ends; then the steps cannot be told apart, and their mean is reported without a p99.
"""

import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from statistics import median, quantiles

import torch
import torch.distributed as dist

from planner.schema import Measurement
from runtime_client.agreement import reducing_device
from runtime_client.errors import ClientError

_P99 = 98
"""Place of the 99th percentile among the 99 cuts of `statistics.quantiles`."""
_FEWEST_FOR_P99 = 20


class StepTimer:
    """Measures the steps of a loop. All ranks use one alike: at the end of a range they exchange four numbers.

    [Example]

        timer = StepTimer(plan.envelope.plan_id, run="llama-8b-3", report=client.report)
        for batch in batches:
            with timer.step():
                train(batch)
    """

    def __init__(
        self,
        plan_id: str,
        *,
        run: str,
        report: Callable[[Measurement], object] | None = None,
        steps_per_range: int = 100,
        warm_up_steps: int = 10,
        start_step: int = 0,
    ) -> None:
        """Start counting.

        Args:
            plan_id: Identity of the plan that was applied: `plan.envelope.plan_id`.
            run: Name of the job, the same after a restart; letters, digits, dots, colons, hyphens, underscores.
            report: Gets the measurement on rank 0, in a thread of its own: `PlanClient.report`.
            steps_per_range: Steps that one measurement covers.
            warm_up_steps: First steps of this process, which are left out.
            start_step: Number of the first step; give that of the checkpoint when a job goes on.

        Raises:
            ClientError: a number is out of range.
            InvalidDocument: `plan_id` or `run` is not one.
        """
        if steps_per_range < 1 or warm_up_steps < 0 or start_step < 0:
            raise ClientError(
                f"steps_per_range={steps_per_range}, warm_up_steps={warm_up_steps}, start_step={start_step}: "
                "the first must be at least 1, the others at least 0"
            )
        self.measurements: list[Measurement] = []
        """Of the ranges that have ended, the same on every rank."""
        self._plan_id = plan_id
        self._run = run
        self._report = report
        self._steps_per_range = steps_per_range
        self._first_step = start_step + warm_up_steps
        self._next_step = start_step
        self._times_ns: list[int] = []
        self._reporting: list[threading.Thread] = []
        self._measurement(0, 1)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of the optimizer with all its micro-batches; one that raises is not counted."""
        is_measured = self._next_step >= self._first_step
        if is_measured and not self._times_ns:
            _start_range()
        start_ns = time.perf_counter_ns()
        yield
        self._next_step += 1
        if not is_measured:
            return
        self._times_ns.append(time.perf_counter_ns() - start_ns)
        if len(self._times_ns) == self._steps_per_range:
            self._end_range()

    def _end_range(self) -> None:
        step_ns, p99_ns = step_times(self._times_ns, _synchronize())
        step_ns, p99_ns, peak, reserved = _highest_of_ranks(step_ns, p99_ns, *_peaks())
        first_step = self._next_step - len(self._times_ns)
        measurement = self._measurement(first_step, max(1, step_ns), p99_ns, peak, reserved)
        self._times_ns = []
        self.measurements.append(measurement)
        if self._report is not None and not (_is_distributed() and dist.get_rank()):
            # Not a daemon: the last report of a job is sent before its process ends.
            thread = threading.Thread(target=self._report, args=(measurement,), name="shardwright-report")
            thread.start()
            self._reporting = [one for one in self._reporting if one.is_alive()] + [thread]

    def wait(self) -> None:
        """Until reports under way have ended; only a process that ends by `os._exit` needs it."""
        for thread in self._reporting:
            thread.join()

    def _measurement(
        self, first_step: int, step_ns: int, p99_ns: int = 0, peak: int = 0, reserved: int = 0
    ) -> Measurement:
        return Measurement.from_object(
            {
                "plan_id": self._plan_id,
                "run": self._run,
                "first_step": first_step,
                "last_step": max(first_step, self._next_step - 1),
                "num_ranks": dist.get_world_size() if _is_distributed() else 1,
                "step_time_ns": step_ns,
                "step_time_p99_ns": max(p99_ns, step_ns) if p99_ns else None,
                "peak_bytes": peak or None,
                "reserved_bytes": reserved or None,
                "device": _device_name()[:200],
                "torch_version": torch.__version__[:100],
                "measured_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            },
            source="the measurement",
        )


def step_times(times_ns: list[int], waited_ns: int) -> tuple[int, int]:
    """Median and 99th percentile (ns, 0 where there is none) of steps; the Note of this module says how.

    Args:
        times_ns: As the host saw each step.
        waited_ns: That it then waited for the device.
    """
    middle = round(median(times_ns))
    if 2 * waited_ns > middle:
        return (sum(times_ns) + waited_ns) // len(times_ns), 0
    if len(times_ns) < _FEWEST_FOR_P99:
        return middle, 0
    return middle, round(quantiles(times_ns, n=100, method="inclusive")[_P99])


def _has_accelerator() -> bool:
    return torch.accelerator.current_accelerator(check_available=True) is not None


def _start_range() -> None:
    _synchronize()
    if _has_accelerator():
        torch.accelerator.reset_peak_memory_stats()


def _synchronize() -> int:
    """Nanoseconds that the host waited for the device; 0 on a CPU, which has done its work."""
    if not _has_accelerator():
        return 0
    start_ns = time.perf_counter_ns()
    torch.accelerator.synchronize()
    return time.perf_counter_ns() - start_ns


def _peaks() -> tuple[int, int]:
    """Bytes allocated and reserved; zeros on a CPU, which keeps no count."""
    if not _has_accelerator():
        return 0, 0
    return torch.accelerator.max_memory_allocated(), torch.accelerator.max_memory_reserved()


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _highest_of_ranks(*numbers: int) -> list[int]:
    if not _is_distributed():
        return list(numbers)
    highest = torch.tensor(numbers, dtype=torch.int64, device=reducing_device())
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return [int(number) for number in highest.tolist()]


def _device_name() -> str:
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return platform.processor() or platform.machine()
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name()) if name is not None else device.type
