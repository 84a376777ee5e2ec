"""One optimizer step of a configuration, with all that explains its times and its memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.schema import Decisions, PlanRequest
from planner.simulate.predict import program_of
from planner.simulate.replay import Replay, replay
from planner.simulate.trace import chrome_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Micro-batches that differ, one after the other, and the optimizer step after them."""

    runs: tuple[tuple[Replay, int], ...]
    """Replays with their memory points, each with how many micro-batches of the step are like it."""
    optimizer_ns: int
    """Optimizer step, on the device and then on the host."""
    cpu_optimizer_ns: int
    """Its part on the host."""

    @property
    def shown_ns(self) -> int:
        """From the first operation to the end of the optimizer step, like micro-batches counted once."""
        return sum(run.micro_batch_ns for run, _ in self.runs) + self.optimizer_ns

    @property
    def step_time_ns(self) -> int:
        """The whole step."""
        return sum(num * run.micro_batch_ns for run, num in self.runs) + self.optimizer_ns

    @property
    def optimizer_start_ns(self) -> int:
        """When the optimizer step begins."""
        return self.shown_ns - self.optimizer_ns

    def placed(self) -> Iterator[tuple[int, Replay, int]]:
        """Start (ns) of each micro-batch, its replay, and how many of the step are like it."""
        start_ns = 0
        for run, num in self.runs:
            yield start_ns, run, num
            start_ns += run.micro_batch_ns

    def chrome_trace(self, name: str) -> dict[str, Any]:
        """The Trace Event Format, which ui.perfetto.dev opens; `name` is the title of the process."""
        return chrome_trace(
            [run for run, _ in self.runs],
            name=name,
            optimizer_ns=self.optimizer_ns,
            cpu_optimizer_ns=self.cpu_optimizer_ns,
        )


def timeline_of(request: PlanRequest, decisions: Decisions) -> Timeline:
    """Replay a configuration with its memory; errors as `program_of`."""
    built = program_of(request, decisions)
    return Timeline(
        runs=tuple((replay(program, points=True), num) for program, num in built.programs),
        optimizer_ns=built.optimizer_ns,
        cpu_optimizer_ns=built.cpu_optimizer_ns,
    )
