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

from planner.schema import GradientSync, Predictions, RuntimeKnobs
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
    num_trainable: int = 0
    unchanged: tuple[str, ...] = ()
    """Trainable parameters of which this rank holds some, and no sampled element changed."""
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
def checked_step(model: nn.Module, predictions: Predictions | None, runtime: RuntimeKnobs) -> Iterator[StepReport]:
    """Watch one optimizer step: all its micro-batches, and the optimizer.

    It reads a few elements of each parameter before and after, counts collectives as they are dispatched, and
    resets the accelerator's count of its peak. Meant for the first step: dispatch is slower meanwhile.
    """
    report = StepReport()
    if predictions is not None:
        report.planned_collectives = _planned(predictions)
        report.planned_peak_bytes = _planned_peak(predictions)
    before = _samples(model)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        torch.accelerator.reset_peak_memory_stats()
    with _Counting() as counting:
        yield report
    if accelerator is not None:
        report.peak_bytes = torch.accelerator.max_memory_allocated()
    report.num_collectives = dict(counting.counts)
    after = _samples(model)
    report.num_trainable = len(after)
    report.unchanged = tuple(
        name for name, sample in after.items() if len(sample) and torch.equal(sample, before[name])
    )
    report.warnings = tuple(_warnings(report, runtime))
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


def _warnings(report: StepReport, runtime: RuntimeKnobs) -> Iterator[str]:
    if report.unchanged:
        yield (
            f"{len(report.unchanged)} of {report.num_trainable} trainable parameters, {report.unchanged[0]!r} "
            "first, did not change: the optimizer may hold other parameters or have a learning rate of 0 in this "
            "step, or they get no gradient"
        )
    for kind, planned in report.planned_collectives.items():
        found = report.num_collectives.get(kind, 0)
        if found < planned or (found > planned and kind != "all-reduces"):
            yield f"{found} {kind} instead of {planned}: {_cause(kind, found, planned, runtime)}"
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


def _cause(kind: str, found: int, planned: int, runtime: RuntimeKnobs) -> str:
    if runtime.gradient_sync is not GradientSync.EVERY_MICRO_BATCH and kind != "all-gathers" and found > planned:
        return "AppliedPlan.begin_micro_batch has to be called before each micro-batch"
    if found < planned:
        return "the step has fewer micro-batches than planned, or a unit did not run on this rank"
    if kind == "all-gathers":
        return (
            "the step has more micro-batches than planned, a unit runs more often (evaluation, checkpointing "
            "beside the plan), or AppliedPlan.begin_micro_batch is not called"
        )
    return "the step has more micro-batches than planned"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
