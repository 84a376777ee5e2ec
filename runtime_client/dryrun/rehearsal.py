"""The training step that both recorders run: the user's model, really sharded, over fake tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from planner.schema import Decisions, OptimizerGroup
from runtime_client.apply import AppliedPlan, apply_decisions
from runtime_client.describe.example import TrainingExample
from runtime_client.describe.kernels import AcceleratorKernels, ZeroScalars, eager_masks
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.attention import FusedAttention
from runtime_client.dryrun.fake_world import fake_world
from runtime_client.dryrun.host_data import TensorsFromData
from runtime_client.dryrun.host_reads import PlausibleReads
from runtime_client.dryrun.optimizer import build_optimizers
from runtime_client.dryrun.pinned import PinnedMemory
from runtime_client.offload.units import offloaded_units

Build = Callable[[], TrainingExample]
"""Makes the model and says how to run it; called under fake tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A sharded model with its optimizers and inputs."""

    example: TrainingExample
    applied: AppliedPlan
    optimizers: list[torch.optim.Optimizer]
    inputs: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def model(self) -> nn.Module:
        """The sharded root."""
        return self.applied.model

    def micro_batch(self, index: int) -> None:
        """Forward, loss and backward of one micro-batch; gradients accumulate."""
        self.applied.begin_micro_batch(index)
        args, kwargs = self.inputs
        with eager_masks():
            loss = self.example.loss(self.model(*args, **kwargs), args, kwargs)  # nothing may hold the output
            _backward(loss)

    def optimizer_step(self) -> None:
        """Update the parameters and drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.applied.after_optimizer_step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for parameters in offloaded_units(self.applied.model, self.applied.decisions).values():
            for parameter in parameters:  # stepped by the client itself, which no optimizer here stands for
                parameter.grad = None


@contextmanager
def rehearse(
    build: Build, decisions: Decisions, *, sequence: int, optimizer_groups: tuple[OptimizerGroup, ...]
) -> Iterator[Rehearsal]:
    """Build and shard the model as rank 0 of `decisions.mesh`, on the recording device."""
    with (
        fake_world(decisions.mesh, recording_device.DEVICE_TYPE) as mesh,
        _recording_by_default(),
        torch.autograd.set_multithreading_enabled(False),  # an engine thread would outlive the interpreter
        AcceleratorKernels(),
        PlausibleReads(),  # type: ignore[no-untyped-call]
        PinnedMemory(),
    ):
        with ZeroScalars():  # type: ignore[no-untyped-call]
            example = build()
        example.model.train()
        applied = apply_decisions(example.model, decisions, mesh)
        yield Rehearsal(
            example=example,
            applied=applied,
            optimizers=build_optimizers(applied, optimizer_groups),
            inputs=example.inputs(decisions.micro_batch, sequence),
        )


def _backward(loss: Tensor) -> None:
    """`loss.backward()`, which as an overridable function would hide AcceleratorKernels from recomputations."""
    torch.autograd.graph._engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def _recording_by_default() -> Iterator[None]:
    with (
        TensorsFromData(),
        FusedAttention(),
        recording_device.as_accelerator(),
        torch.device(recording_device.DEVICE_TYPE),
    ):
        yield
