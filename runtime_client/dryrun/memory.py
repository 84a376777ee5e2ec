"""Peak memory of the real FSDP2 code, counted tensor by tensor, on the device and in host memory."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed._tools import mod_tracker
from torch.distributed._tools.mem_tracker import MemTracker

from planner.schema import Decisions, OptimizerGroup
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.rehearsal import Build, Rehearsal, rehearse

_TOTAL = "Total"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Most bytes allocated at once in a phase of a step: on the device, and what it was made of."""

    total_bytes: int
    by_category_bytes: dict[str, int]
    """MemTracker's categories at that moment; gathered parameters count as activation or temp."""
    modules: tuple[str, ...]
    """Modules that were running, outermost first."""
    operation: str
    """The operation that allocated, e.g. `aten.mm.default`."""
    in_backward: bool
    host_bytes: int
    """Most bytes in host memory at once, at whatever moment of the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """What one rank allocates in a step, without the rounding of a caching allocator."""

    world_size: int
    persistent_bytes: int
    """Between two steps, on the device: sharded parameters, optimizer state, buffers and inputs."""
    persistent_host_bytes: int
    """Between two steps, in host memory: shards and state of offloaded units, step counts of the optimizer."""
    step_counts_bytes: int
    """Of these, the step counts: a float for each parameter of Adam and AdamW, fused ones apart, whose counts lie
    beside the parameters and belong to the state."""
    micro_batch: PhasePeak
    """Forward and backward: the highest of all micro-batches."""
    optimizer: PhasePeak
    """The optimizer step."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes allocated at once in the whole step, on the device."""
        return max(self.micro_batch.total_bytes, self.optimizer.total_bytes)

    @property
    def peak_host_bytes(self) -> int:
        """Most bytes allocated at once in the whole step, in host memory."""
        return max(self.micro_batch.host_bytes, self.optimizer.host_bytes)


def record_memory(
    build: Build,
    decisions: Decisions,
    *,
    sequence: int,
    optimizer_groups: tuple[OptimizerGroup, ...] = (OptimizerGroup(),),
    num_steps: int = 3,
) -> MemoryRecord:
    """Run `num_steps` optimizer steps as one rank of `decisions.mesh` and record the last of them.

    Under fake tensors an operation on sharded parameters leaves traces of its first use, which the tracker would
    count. An optimizer that starts its state in the first step reaches some operations only in the second, so
    `num_steps` should be at least 3.
    """
    with rehearse(build, decisions, sequence=sequence, optimizer_groups=optimizer_groups) as rehearsal:
        tracker = PeakTracker()
        tracker.track_external(rehearsal.model, *rehearsal.optimizers)
        tracker.track_external(*_tensors(rehearsal.inputs))
        for _ in range(num_steps):
            record = _step(rehearsal, tracker)
    return record


def _step(rehearsal: Rehearsal, tracker: "PeakTracker") -> MemoryRecord:
    persistent, persistent_host = tracker.device_bytes(), tracker.host_bytes()
    peaks = [
        tracker.phase(lambda index=index: rehearsal.micro_batch(index))  # type: ignore[misc]
        for index in range(rehearsal.applied.decisions.num_micro_batches)
    ]
    highest = max(peaks, key=lambda peak: peak.total_bytes)
    return MemoryRecord(
        world_size=rehearsal.applied.decisions.mesh.num_ranks,
        persistent_bytes=persistent,
        persistent_host_bytes=persistent_host,
        step_counts_bytes=sum(map(_step_counts_bytes, rehearsal.optimizers)),
        micro_batch=replace(highest, host_bytes=max(peak.host_bytes for peak in peaks)),
        optimizer=tracker.phase(rehearsal.optimizer_step),
    )


def _step_counts_bytes(optimizer: torch.optim.Optimizer) -> int:
    parameters = [p for group in optimizer.param_groups if not group.get("fused") for p in group["params"]]
    counts = [optimizer.state[p]["step"] for p in parameters if "step" in optimizer.state.get(p, {})]
    return sum(count.nbytes for count in counts if count.device.type == "cpu")


class PeakTracker(MemTracker):  # type: ignore[no-untyped-call]
    """MemTracker that keeps one peak per phase, with its moment, and no statistics by module."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = ""
        self._peak = self._now()
        self._peak_host_bytes = 0

    def device_bytes(self) -> int:
        """Bytes allocated now on the device."""
        return sum(self._totals(recording_device.DEVICE_TYPE))

    def host_bytes(self) -> int:
        """Bytes allocated now in host memory."""
        return sum(self._totals("cpu"))

    def phase(self, run: Callable[[], object]) -> PhasePeak:
        """Run something and return its peak."""
        self.reset_mod_stats()
        with self, _hooks_that_hold_no_gradients():
            self._peak, self._peak_host_bytes = self._now(), self.host_bytes()
            run()
        return replace(self._peak, host_bytes=self._peak_host_bytes)

    def _totals(self, device_type: str) -> list[int]:
        return [snapshot[_TOTAL] for device, snapshot in self._curr_mem_snap.items() if device.type == device_type]

    def _track_module_params_and_buffers(
        self, module: torch.nn.Module, install_grad_hooks: bool = True
    ) -> tuple[int, int]:
        return super()._track_module_params_and_buffers(module, install_grad_hooks=False)  # refuses frozen ones

    def _update_peak_stats(self, peak_state: object) -> None:
        self._peak_host_bytes = max(self._peak_host_bytes, self.host_bytes())
        if self.device_bytes() > self._peak.total_bytes:
            self._peak = self._now()

    def _now(self) -> PhasePeak:
        return PhasePeak(
            total_bytes=self.device_bytes(),
            by_category_bytes=self._by_category(),
            modules=tuple(sorted(self._mod_tracker.parents - {"Global"}, key=lambda path: path.count("."))),
            operation=self._operation,
            in_backward=self._mod_tracker.is_bw,
            host_bytes=0,
        )

    def _by_category(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for device, snapshot in self._curr_mem_snap.items():
            if device.type == recording_device.DEVICE_TYPE:
                found.update({str(k.value): v for k, v in snapshot.items() if isinstance(k, Enum) and v})
        return dict(found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self._operation = str(func)
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


@contextmanager
def _hooks_that_hold_no_gradients() -> Iterator[None]:
    """ModTracker's hook on several inputs of a module holds their gradients until the last of them is there.

    Nobody holds them without a tracker; here a module counts as done when the first of them is there.
    """
    without_holding = partial(register_multi_grad_hook, mode="any")
    mod_tracker.register_multi_grad_hook = without_holding  # type: ignore[attr-defined]
    try:
        yield
    finally:
        mod_tracker.register_multi_grad_hook = register_multi_grad_hook  # type: ignore[attr-defined]


def _tensors(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
