"""Whether a real step did what its plan says: peak, collectives, weights that changed. One line, and warnings."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.schema import Decisions, GradientSync, Predictions
from runtime_client.apply.step_order import watched_order
from runtime_client.fingerprint import iter_parameters

_log = logging.getLogger(__name__)

PEAK_TOLERANCE = 0.02
"""Share of the predicted peak by which a real one may differ without a warning."""
_SAMPLED_ELEMENTS = 16
_KINDS = {
    "_allgather_base_": "all-gathers",
    "_reduce_scatter_base_": "reduce-scatters",
    "allreduce_": "all-reduces",
}


@dataclass(slots=True, kw_only=True)
class StepReport:
    """What one rank saw of a step; filled when the step has ended."""

    num_collectives: Mapping[str, int] = field(default_factory=dict)
    planned_collectives: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    """Allocated on the accelerator; None on a CPU, which keeps no count."""
    planned_peak_bytes: int = 0
    num_forwards: int = 0
    """Runs of the whole model, one for each micro-batch."""
    num_trainable: int = 0
    unchanged: tuple[str, ...] = ()
    """Trainable parameters of which this rank holds some, and no sampled element changed."""
    gathered: tuple[str, ...] = ()
    """Trainable parameters that the optimizer stepped, or left out, while their unit was gathered."""
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """All of it in one line."""
        counts = ", ".join(
            f"{self.num_collectives.get(kind, 0)} of {planned} {kind}"
            for kind, planned in self.planned_collectives.items()
        )
        peak = (
            f"peak {_gib(self.peak_bytes)} of {_gib(self.planned_peak_bytes)} GiB"
            if self.peak_bytes is not None
            else "peak not counted on a CPU"
        )
        against = f"{peak}; {counts}" if self.planned_collectives else "it predicts nothing"
        return f"step against plan: {against}; {self.changed} of {self.num_trainable} parameters changed"

    @property
    def changed(self) -> int:
        """Trainable parameters that changed, or of which this rank holds none."""
        return self.num_trainable - len(self.unchanged)


@contextmanager
def checked_step(model: nn.Module, predictions: Predictions | None, decisions: Decisions) -> Iterator[StepReport]:
    """Watch one optimizer step: all its micro-batches, and the optimizer.

    It reads a few elements of each parameter before and after, counts collectives as they are dispatched, looks in
    which order units run, and resets the accelerator's count of its peak. Meant for the first step: dispatch is
    slower meanwhile.
    """
    report = StepReport()
    if predictions is not None:
        report.planned_collectives = _planned(predictions)
        report.planned_peak_bytes = _planned_peak(predictions)
    before = _samples(model)
    sharded = {name for name, parameter in iter_parameters(model) if isinstance(parameter, DTensor)}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        torch.accelerator.reset_peak_memory_stats()
    with _Counting() as counting, watched_order(model, decisions) as order:
        yield report
    if accelerator is not None:
        report.peak_bytes = torch.accelerator.max_memory_allocated()
    report.num_collectives = dict(counting.counts)
    after = _samples(model)
    report.num_trainable = len(after)
    report.unchanged = tuple(
        name for name, sample in after.items() if len(sample) and torch.equal(sample, before[name])
    )
    report.gathered = tuple(
        name
        for name, parameter in iter_parameters(model)
        if name in before and name in sharded and not isinstance(parameter, DTensor)
    )
    report.num_forwards = order.num_forwards
    behind = (
        f"{edge}: it stays gathered for nothing. Plan this model again"
        for edge in order.prefetches_behind(decisions)
    )
    report.warnings = (*_warnings(report, decisions), *behind)
    _log.info("%s", report.line)
    for warning in report.warnings:
        _log.warning("%s", warning)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func.namespace == "c10d" and func._opname in _KINDS:
            self.counts[_KINDS[func._opname]] += 1
        return func(*args, **(kwargs or {}))


def _planned(predictions: Predictions) -> dict[str, int]:
    return {
        "all-gathers": predictions.num_all_gathers,
        "reduce-scatters": predictions.num_reduce_scatters,
        "all-reduces": predictions.num_all_reduces,
    }


def _planned_peak(predictions: Predictions) -> int:
    """Of the first step, in which the optimizer's state comes into being after backward."""
    return max(predictions.peak.first_micro_batch_bytes, predictions.peak.optimizer_step_bytes)


def _samples(model: nn.Module) -> dict[str, Tensor]:
    """The first elements of each trainable shard."""
    found = {}
    for name, parameter in iter_parameters(model):
        if parameter.requires_grad:
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            found[name] = local.detach().reshape(-1)[:_SAMPLED_ELEMENTS].clone()
    return found


def _warnings(report: StepReport, decisions: Decisions) -> Iterator[str]:
    if report.gathered:
        yield (
            f"{len(report.gathered)} parameters, {report.gathered[0]!r} first, were gathered when the optimizer "
            "stepped, and the next forward will use their old values: run no forward between the last backward and "
            "the optimizer, and call AppliedPlan.begin_micro_batch before the last micro-batch"
        )
    if left := [name for name in report.unchanged if name not in report.gathered]:
        yield (
            f"{len(left)} of {report.num_trainable} trainable parameters, {left[0]!r} "
            "first, did not change: the optimizer may hold other parameters or have a learning rate of 0 in this "
            "step, or they get no gradient"
        )
    for kind, planned in report.planned_collectives.items():
        found = report.num_collectives.get(kind, 0)
        if found < planned or (found > planned and kind != "all-reduces"):
            yield f"{found} {kind} instead of {planned}: {_cause(report, kind, found - planned, decisions)}"
    if (
        report.peak_bytes
        and report.planned_peak_bytes
        and report.peak_bytes > (1 + PEAK_TOLERANCE) * report.planned_peak_bytes
    ):
        yield (
            f"the peak is {_gib(report.peak_bytes)} GiB instead of {_gib(report.planned_peak_bytes)}: something "
            "beside the model holds device memory (outputs or losses kept over micro-batches, metrics, another "
            "optimizer than planned), or batches are larger than planned"
        )


def _cause(report: StepReport, kind: str, excess: int, decisions: Decisions) -> str:
    if report.num_forwards != decisions.num_micro_batches:
        return (
            f"the model ran {report.num_forwards} times, and a step of the plan has {decisions.num_micro_batches} "
            "micro-batches (an evaluation counts too)"
        )
    if excess < 0:
        return "a unit did not run on this rank, or nothing of it got a gradient"
    if _needs_calls(decisions):
        return "AppliedPlan.begin_micro_batch has to be called before each micro-batch"
    if kind == "all-gathers":
        return "a unit runs more often, is checkpointed beside the plan, or is prefetched when it is over"
    return "a unit runs more often than planned"


def _needs_calls(decisions: Decisions) -> bool:
    """Whether micro-batches differ, so that a loop has to say which one comes."""
    is_same = decisions.runtime.gradient_sync is GradientSync.EVERY_MICRO_BATCH
    return not is_same or not all(unit.reshard_after_backward for unit in decisions.units)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
