"""Forward, backward and recomputation of each kind of call, under the kernels of the device.

[Note: one of each] Kinds with one `block_hash` take the same time: one module stands for all of them. The points of
a kind alternate, so that what changes on the machine meanwhile changes all of them alike.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.utils import _apply_to_tensors

from planner.collector import without_collector
from planner.schema import LOSS_PATH, CallRole, ModelDescription, TracePoint, block_hash
from runtime_client.profile.clock import Clock
from runtime_client.profile.fake_run import Arguments, FakeModel
from runtime_client.profile.memory import CallBytes, call_bytes
from runtime_client.profile.real import num_rows, on_device, real_arguments
from runtime_client.profile.recomputation import Stretch, checkpointed

FEWEST_SAMPLES = 5
MOST_SAMPLES = 100
_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Kinds that take the same time, and where the first of them is."""

    block: str
    kinds: tuple[str, ...]
    path: str
    is_checkpointable: bool


@dataclass(slots=True, kw_only=True)
class CallSamples:
    """Nanoseconds of each pass at one point, and the bytes that it takes."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    recompute: list[int] = field(default_factory=list)
    num_bytes: CallBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not measured; plans assume it."""

    what: str
    why: str


def subjects(model: ModelDescription) -> list[Subject]:
    """What can be run by itself: modules and the loss, not the code of containers between them."""
    found: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for call in model.calls:
        if model.kinds[call.kind].role is CallRole.GLUE:
            continue
        block = block_hash(model, call.kind)
        paths.setdefault(block, call.path)
        if call.kind not in found.setdefault(block, []):
            found[block].append(call.kind)
    return [
        Subject(
            block=block,
            kinds=tuple(kinds),
            path=paths[block],
            is_checkpointable=any(model.kinds[kind].full is not None for kind in kinds),
        )
        for block, kinds in found.items()
    ]


class Probe:
    """One call with arguments of one size.

    Args:
        call: what runs.
        arguments: on the device.
        tensors: parameters and buffers of the call.
        device: where it runs.
        now_ns: the host's clock, for a CPU.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        arguments: Arguments,
        tensors: list[Tensor],
        device: torch.device,
        now_ns: Callable[[], int],
    ) -> None:
        self._call = call
        self._args, self._kwargs = arguments
        self._tensors = tensors
        self._device = device
        self._now_ns = now_ns
        self._clock = Clock(device, now_ns)
        self._inputs = _tensors(arguments)
        self._gradients: list[Tensor] = []
        self.samples = CallSamples()

    def warm_up(self, *, recomputes: bool) -> None:
        """Run everything before it is measured; the first run counts bytes."""
        self._gradients = [torch.randn_like(output) for output in _roots(self._forward())]
        self._clear()
        self.samples.num_bytes = call_bytes(
            self._forward, self._backward, parameters=self._tensors, inputs=self._inputs
        )
        for _ in range(_WARM_UPS):
            self._sample(recomputes=recomputes)

    def settle(self) -> None:
        """Run once after other sizes: caches and the allocator are then as between equal steps of training."""
        self._clear()
        self._backward(self._forward())

    def measure(self, *, recomputes: bool) -> None:
        """One sample of each pass."""
        forward, backward, recompute = self._sample(recomputes=recomputes)
        self.samples.forward.append(forward)
        if self._gradients:
            self.samples.backward.append(backward)
        if recompute is not None:
            self.samples.recompute.append(recompute)

    def _sample(self, *, recomputes: bool) -> tuple[int, int, int | None]:
        outputs: list[Any] = []
        self._clear()
        forward = self._clock.time_ns(lambda: outputs.append(self._forward()))
        backward = self._clock.time_ns(lambda: self._backward(outputs.pop())) if self._gradients else 0
        if not (recomputes and self._gradients):
            return forward, backward, None
        self._clear()
        stretch = Stretch(self._device, self._now_ns)
        output = checkpointed(self._call, self._args, self._kwargs, stretch)
        self._clock.time_ns(lambda: self._backward(output))
        return forward, backward, stretch.duration_ns()

    def _forward(self) -> Any:  # noqa: ANN401 - whatever the call returns
        return self._call(*self._args, **self._kwargs)

    def _backward(self, output: object) -> None:
        if self._gradients:
            torch.autograd.backward(_roots(output), self._gradients)

    def _clear(self) -> None:
        """Gradients are new in each backward, as FSDP2 has them: nothing is added up."""
        for tensor in (*self._tensors, *self._inputs):
            tensor.grad = None


def measure_subject(
    fake: FakeModel,
    subject: Subject,
    points: list[TracePoint],
    device: torch.device,
    *,
    seconds: float,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> tuple[dict[TracePoint, CallSamples], list[Skipped]]:
    """Samples of one subject at each point, for about so many seconds; what cannot be run is skipped."""
    skipped: list[Skipped] = []
    probes: dict[TracePoint, Probe] = {}
    path = subject.path
    fakes = {point: fake.arguments([path], point.micro_batch, point.sequence)[path] for point in points}
    with _running(fake, path, device) as (call, tensors):
        for point, arguments in fakes.items():
            try:
                probe = Probe(call, _real(fake, path, arguments, device), tensors, device, now_ns)
                probe.warm_up(recomputes=subject.is_checkpointable)
                probes[point] = probe
            except Exception as error:
                where = f"{subject.kinds[0]} at {point.micro_batch} x {point.sequence}"
                skipped.append(Skipped(what=where, why=_first_line(error)))
                if device.type != "cpu":
                    torch.cuda.empty_cache()
        _alternate(list(probes.values()), seconds, recomputes=subject.is_checkpointable)
    return {point: probe.samples for point, probe in probes.items()}, skipped


def _alternate(probes: list[Probe], seconds: float, *, recomputes: bool) -> None:
    end = time.monotonic() + seconds
    for number in range(MOST_SAMPLES):
        if number >= FEWEST_SAMPLES and time.monotonic() > end:
            return
        with without_collector():
            for probe in probes:
                probe.settle()
                probe.measure(recomputes=recomputes)
        gc.collect(1)


@contextmanager
def _running(fake: FakeModel, path: str, device: torch.device) -> Iterator[tuple[Callable[..., Any], list[Tensor]]]:
    if path == LOSS_PATH:
        yield fake.example.loss, []
        return
    module = fake.module(path)
    with on_device(module, device):
        yield module, [*module.parameters(), *module.buffers()]


def _real(fake: FakeModel, path: str, arguments: Arguments, device: torch.device) -> Arguments:
    rows = None if path == LOSS_PATH else num_rows(fake.module(path))
    real: Arguments = real_arguments(arguments, device, num_rows=rows)
    return real


def _tensors(value: Any) -> list[Tensor]:  # noqa: ANN401 - arguments or results of any module
    found: dict[int, Tensor] = {}
    _apply_to_tensors(lambda tensor: found.setdefault(id(tensor), tensor), value)
    return list(found.values())


def _roots(output: object) -> list[Tensor]:
    return [tensor for tensor in _tensors(output) if tensor.requires_grad]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]
