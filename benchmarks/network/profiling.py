"""Measures what a plan needs to know of these ranks: calls, copies, transfers, the optimizer, and how they overlap.

Calls are timed where they run: in a forward and a backward of the whole model on one rank, between the moments at
which their outputs and the gradients of these are there.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from benchmarks.network.interference import least_disturbed, most_of_ranks
from benchmarks.network.wire import Wire
from planner.schema import (
    LOSS_PATH,
    CallMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    ModelDescription,
    Profile,
)
from runtime_client.describe import TrainingExample
from runtime_client.describe.example import Inputs

SIZES_BYTES = tuple(2**exponent for exponent in range(17, 26))
"""Full buffers of collectives."""
_MEDIAN_OF = ("all_gather", "reduce_scatter", "transfer", "alone", "beside")
"""Names, or parts of them."""
CHECKPOINTED = "checkpointed "
"""Begins the names of what is timed with all blocks checkpointed."""
_COPY_BYTES = 4 * 2**20
_TIMES_AS_LONG = 1.3
"""As the computation beside them that transfers should take."""


@dataclass(slots=True)
class Samples:
    """Nanoseconds by what was timed.

    A step is a sum of many calls, and so is its mean: of calls the mean is taken, of all but the longest 5 %. Of
    transfers there are few samples, of which one that waited for the other rank may be half as long again: medians.
    """

    by_name: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, duration_ns: int) -> None:
        """One more."""
        self.by_name[name].append(duration_ns)

    def collect(self, part: "Part", rounds: int) -> None:
        """Run something that adds samples so many times undisturbed; every rank calls it alike."""

        def once() -> Samples:
            found = Samples()
            part(found)
            return found

        for _, found in least_disturbed(once, rounds):
            for name, durations in found.by_name.items():
                self.by_name[name] += durations

    def slowest(self) -> dict[str, int]:
        """What each name takes on the rank where it is longest; every rank calls it alike."""
        names = sorted(self.by_name)
        times = torch.tensor([_typical(name, self.by_name[name]) for name in names], dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return {name: round(value) for name, value in zip(names, times.tolist(), strict=True)}

    def spread(self, name: str) -> float:
        """(p90 - p10) / median of one name on this rank."""
        ordered = sorted(self.by_name[name])
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        return round((high - low) / median(ordered), 4)


Part = Callable[[Samples], None]
"""Adds one sample of each of its names."""


def _typical(name: str, samples: Sequence[int]) -> float:
    if any(word in name for word in _MEDIAN_OF):
        return median(samples)
    ordered = sorted(samples)
    return fmean(ordered[: max(1, round(0.95 * len(ordered)))])


class CallTimer:
    """Times calls of an unsharded model where they run, in a forward and a backward of the whole of it.

    With all blocks checkpointed, backward of a block takes as much longer as its recomputation: less than its
    forward, since what it computes is still in the cache.

    After each call it sleeps as long as that took. Steps wait for transfers as well, and where others use the core
    a thread that sleeps now and then is given it sooner than one that never does.
    """

    def __init__(
        self, example: TrainingExample, description: ModelDescription, inputs: Inputs, *, checkpointed: bool = False
    ) -> None:
        self._example = example
        self._prefix = CHECKPOINTED if checkpointed else ""
        self._args, self._kwargs = inputs
        self._calls = [call for call in description.calls if call.path != LOSS_PATH]
        self._loss_kind = next(call.kind for call in description.calls if call.path == LOSS_PATH)
        self._samples = Samples()
        self._resumed_ns = 0
        for call in self._calls if checkpointed else ():
            if description.kinds[call.kind].full is not None:
                parent, _, name = call.path.rpartition(".")
                block = example.model.get_submodule(call.path)
                setattr(example.model.get_submodule(parent), name, checkpoint_wrapper(block))
        for call, later in zip(self._calls, [*self._calls[1:], None], strict=True):
            after = later.kind if later else self._loss_kind
            example.model.get_submodule(call.path).register_forward_hook(self._hook(call.kind, after))

    def _hook(self, kind: str, after: str) -> Callable[[nn.Module, object, Tensor], None]:
        """The gradient of the output is there when the backward of what comes `after` has ended."""

        def lap(module: nn.Module, args: object, output: Tensor) -> None:
            self._lap(f"forward {kind}")
            output.register_hook(lambda gradient: self._lap(f"backward {after}"))

        return lap

    def _lap(self, name: str) -> None:
        duration_ns = time.perf_counter_ns() - self._resumed_ns
        self._samples.add(self._prefix + name, duration_ns)
        time.sleep(duration_ns / 1e9)
        self._resumed_ns = time.perf_counter_ns()

    def run(self, samples: Samples) -> None:
        """One forward and backward; adds `forward KIND` and `backward KIND` for each call."""
        self._samples = samples
        self._example.model.zero_grad(set_to_none=True)
        self._resumed_ns = time.perf_counter_ns()
        output = self._example.model(*self._args, **self._kwargs)
        loss = self._example.loss(output, self._args, self._kwargs)
        del output
        self._lap(f"forward {self._loss_kind}")
        loss.backward()  # type: ignore[no-untyped-call]
        self._lap(f"backward {self._calls[0].kind}")


def forward_and_backward(example: TrainingExample, inputs: Inputs) -> None:
    """Of the whole model on one rank."""
    args, kwargs = inputs
    example.model.zero_grad(set_to_none=True)
    example.loss(example.model(*args, **kwargs), args, kwargs).backward()  # type: ignore[no-untyped-call]


def transfer(wire: Wire | None, collective: str, size_bytes: int) -> Callable[[], dist.Work]:
    """A function that begins a collective whose full buffer has this size; without a wire it is gloo's own."""
    num_ranks = dist.get_world_size()
    share = torch.ones(size_bytes // 4 // num_ranks)
    full = torch.ones(share.numel() * num_ranks)
    if collective == "all_gather":
        if wire is not None:
            return lambda: wire.all_gather(full, share)
        return lambda: dist.all_gather_single(full, share, async_op=True)
    if wire is not None:
        return lambda: wire.reduce_scatter(share, full, divide=True)
    return lambda: dist.reduce_scatter_single(output=share, input=full, op=dist.ReduceOp.AVG, async_op=True)


def timed(run: Callable[[], object]) -> int:
    """Nanoseconds."""
    began = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - began


def add_transfers(samples: Samples, wire: Wire | None, sizes_bytes: Sequence[int]) -> None:
    """One sample of each collective at each size."""
    for collective in ("all_gather", "reduce_scatter"):
        for size_bytes in sizes_bytes:
            begin = transfer(wire, collective, size_bytes)
            dist.barrier()
            began = time.perf_counter_ns()
            begin().wait()
            name = f"{_prefix(is_stock=wire is None)}{collective} {size_bytes}"
            samples.add(name, time.perf_counter_ns() - began)


def _prefix(*, is_stock: bool) -> str:
    return "stock " if is_stock else ""


def add_copies(samples: Samples, num_ranks: int) -> None:
    """What FSDP2 copies: out of a gather, and into a reduction."""
    gathered = torch.ones(_COPY_BYTES // 4)
    out = [torch.empty(num_ranks, gathered.numel() // 4 // num_ranks) for _ in range(4)]
    split = [one.shape[1] for one in out]
    samples.add(
        "copy",
        timed(lambda: torch.split_with_sizes_copy(gathered.view(num_ranks, -1), split, dim=1, out=out)),
    )
    gradients = [torch.ones(64 * num_ranks, gathered.numel() // 4 // 64 // num_ranks) for _ in range(4)]
    into = torch.empty(num_ranks, gathered.numel() // num_ranks)
    samples.add("copy", timed(lambda: torch._chunk_cat(gradients, 0, num_ranks, out=into)))


def add_optimizer(samples: Samples, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    samples.add("optimizer", timed(optimizer.step))


def add_overlap(samples: Samples, compute: Callable[[], None], size_bytes: int, wire: Wire) -> None:
    """Computation alone and while transfers run, as many as it takes; transfers alone and while it computes.

    They are gathers: what a reduction adds up is no transfer, and waits in a step until it is asked for.
    """
    begin = transfer(wire, "all_gather", size_bytes)
    dist.barrier()
    alone_ns = timed(compute)
    samples.add("compute alone", alone_ns)
    dist.barrier()
    one_ns = timed(lambda: begin().wait())
    samples.add("transfer", one_ns)
    num_transfers = round(most_of_ranks(1 + _TIMES_AS_LONG * alone_ns / one_ns))
    dist.barrier()
    works = [begin() for _ in range(num_transfers)]
    samples.add("transfers alone", timed(lambda: [work.wait() for work in works]))
    dist.barrier()
    ended_ns: list[int] = []
    began = time.perf_counter_ns()
    works = [begin() for _ in range(num_transfers)]

    def wait() -> None:
        for work in works:
            work.wait()
        ended_ns.append(time.perf_counter_ns())

    waiting = threading.Thread(target=wait)
    waiting.start()
    samples.add("compute beside", timed(compute))
    waiting.join()
    samples.add("transfers beside", ended_ns[0] - began)


def profile_of(
    times: dict[str, int],
    description: ModelDescription,
    *,
    point: tuple[int, int],
    num_ranks: int,
    num_optimizer_parameters: int,
    num_transfers: int,
    is_stock: bool = False,
) -> Profile:
    """The means as a document.

    Args:
        times: of everything, by name.
        description: of the model.
        point: (micro-batch, sequence).
        num_ranks: of the collectives.
        num_optimizer_parameters: that one step of the optimizer was timed with.
        num_transfers: of units, in a step as FSDP2 takes it by default, which gathers each twice and reduces it.
        is_stock: with gloo's own collectives.
    """
    micro_batch, sequence = point
    prefix = _prefix(is_stock=is_stock)
    return Profile(
        name="network",
        calls=tuple(
            CallMeasurement(
                kind=kind,
                micro_batch=micro_batch,
                sequence=sequence,
                forward_ns=times[f"forward {kind}"],
                backward_ns=times[f"backward {kind}"],
                recompute_ns=_recompute_ns(times, kind),
            )
            for kind in description.kinds
            if f"forward {kind}" in times
        ),
        # A transfer takes no longer than a larger one: what exceeds that is another program's.
        collectives=tuple(
            CollectiveMeasurement(
                collective=collective,
                num_ranks=num_ranks,
                num_nodes=num_ranks,
                points=tuple(
                    CurvePoint(
                        size_bytes=size,
                        duration_ns=min(
                            times.get(f"{prefix}{collective} {one}", times[name])
                            for one in SIZES_BYTES
                            if one >= size
                        ),
                    )
                    for size in SIZES_BYTES
                    for name in (f"{prefix}{collective} {size}",)
                    if name in times
                ),
            )
            for collective in ("all_gather", "reduce_scatter")
        ),
        copies=(
            CopyMeasurement(direction="device_to_device", bytes_per_s=_COPY_BYTES * 10**9 // max(1, times["copy"])),
        ),
        launch_ns=times.get("launch", 0),
        optimizer_parameters_per_s=num_optimizer_parameters * 10**9 // max(1, times["optimizer"]),
        compute_slowdown_under_communication=round(_lost(times, "compute") * _busy_share(times, num_transfers), 4),
        communication_slowdown_under_compute=_lost(times, "transfers"),
    )


def _recompute_ns(times: dict[str, int], kind: str) -> int:
    """A forward, unless the difference of the backwards says more: noise may leave little of it."""
    forward_ns, backward_ns = times[f"forward {kind}"], times[f"backward {kind}"]
    longer_ns = times.get(f"{CHECKPOINTED}backward {kind}", 0) - backward_ns
    return longer_ns if longer_ns > forward_ns // 2 else forward_ns


def _busy_share(times: dict[str, int], num_transfers: int) -> float:
    """Of a step, that the link is busy. A plan's computation is stretched as a whole, and transfers are not always
    beside it: what it loses beside them counts so much.
    """
    busy_ns = num_transfers * times.get("transfer", 0)
    return busy_ns / max(1, busy_ns + times.get("compute alone", 0))


def _lost(times: dict[str, int], name: str) -> float:
    if f"{name} beside" not in times:
        return 0.0
    return round(max(0.0, 1 - times[f"{name} alone"] / times[f"{name} beside"]), 4)
