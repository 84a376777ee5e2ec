"""A model sharded by decisions, one optimizer step at a time."""

import time
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.network.overlap import Transfers, overlap
from benchmarks.network.wire import Wire
from planner.schema import Decisions
from runtime_client.apply import apply_decisions
from runtime_client.describe import TrainingExample
from runtime_client.describe.example import Inputs
from runtime_client.dryrun.memory import PeakTracker


class Trainer:
    """One arm on this rank."""

    def __init__(
        self,
        example: TrainingExample,
        decisions: Decisions,
        mesh: DeviceMesh,
        inputs: Inputs,
        wire: Wire | None,
    ) -> None:
        """Shard the model; without a wire it has FSDP2's own collectives, which wait for every transfer."""
        self._example = example
        self._args, self._kwargs = inputs
        self._applied = apply_decisions(example.model, decisions, mesh)
        self._transfers: Transfers | None = None
        if wire is not None:
            buffers = decisions.runtime.reduce_scatter_max_input_buffers
            self._transfers = overlap(self._applied.model, wire, max_in_flight=buffers)
        self.optimizer = torch.optim.AdamW(self._applied.model.parameters(), lr=1e-4, foreach=True)

    @property
    def num_parameters(self) -> int:
        """On this rank."""
        return sum(p.to_local().numel() for p in self._applied.model.parameters())  # type: ignore[attr-defined]

    def fill_gradients(self) -> None:
        """Gradients of ones, so that the optimizer may step."""
        for parameter in self._applied.model.parameters():
            parameter.grad = torch.ones_like(parameter)

    def timed_step(self) -> tuple[int, float]:
        """Nanoseconds and loss of one step."""
        began = time.perf_counter_ns()
        loss = self.step()
        return time.perf_counter_ns() - began, loss.item()

    def step(self) -> Tensor:
        """All micro-batches and the optimizer; returns the last loss."""
        for index in range(self._applied.decisions.num_micro_batches):
            loss = self._micro_batch(index)
        self._optimizer_step()
        return loss

    def _micro_batch(self, index: int) -> Tensor:
        self._applied.begin_micro_batch(index)
        output = self._applied.model(*self._args, **self._kwargs)
        loss = self._example.loss(output, self._args, self._kwargs)
        del output
        loss.backward()  # type: ignore[no-untyped-call]
        if self._transfers is not None:
            self._transfers.drain()
        return loss.detach()

    def _optimizer_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def peak_bytes(self) -> int:
        """Most bytes of tensors at once in one more step, as `MemTracker` counts them."""
        tracker = PeakTracker()
        tracker.track_external(self._applied.model, self.optimizer, *self._args)
        batches = range(self._applied.decisions.num_micro_batches)
        parts = [*(partial(self._micro_batch, index) for index in batches), self._optimizer_step]
        return max(tracker.phase(part).host_bytes for part in parts)
