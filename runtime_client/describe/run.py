"""Runs a prepared model once under the tracer, at one point and under one activation policy."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Self

from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from planner.collector import without_collector
from planner.schema.base import DType
from planner.schema.model import CallRole, TracePoint
from runtime_client.describe.calls import CallTrace, Pass
from runtime_client.describe.errors import NoParameters
from runtime_client.describe.example import Inputs, TrainingExample, input_tensors
from runtime_client.describe.frontier import FrontierModule
from runtime_client.describe.kernels import AcceleratorKernels, WideStatistics, eager_masks
from runtime_client.describe.passing import Passage
from runtime_client.describe.prepare import cast_inputs, cast_output, distinct_bytes
from runtime_client.describe.storages import Label, Storage, Storages
from runtime_client.describe.tracer import Tracer
from runtime_client.describe.walk import ModuleWalk
from runtime_client.saved_ops import selective_contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model made ready by `prepare`: every registered parameter is its own, in `param_dtype`."""

    example: TrainingExample
    frontier: tuple[FrontierModule, ...]
    param_dtype: DType | None
    output_dtype: DType | None = None
    paths: dict[nn.Module, str] = field(default_factory=dict)
    passages: dict[str, Passage] = field(default_factory=dict)
    """What can stand for a call, by path; learnt in the first run that makes it."""
    joined: frozenset[nn.Module] = frozenset()
    """Modules whose inputs are joined as FSDP2 joins those of a unit: calls of the model with parameters."""

    @property
    def blocks(self) -> tuple[FrontierModule, ...]:
        """The blocks, each module once."""
        seen: dict[nn.Module, FrontierModule] = {}
        for item in self.frontier:
            if item.role is CallRole.BLOCK:
                seen.setdefault(item.module, item)
        return tuple(seen.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """All calls of one run and the storages alive between its forward and its backward."""

    calls: list[CallTrace]
    kept: list[Storage]
    let_go: list[Storage]
    """Those freed in forward that outlived a call after the one that made them."""
    inputs_bytes: int
    """Tensor arguments, in their own types."""
    attention_draws: bool = False
    """Attention has dropout, so that its kernels draw random numbers."""


def run(
    subject: Subject,
    point: TracePoint,
    *,
    checkpointed: bool,
    saved_ops: Mapping[str, frozenset[str]] | None = None,
    skipped: frozenset[str] = frozenset(),
) -> RunTrace:
    """Trace one forward and backward.

    Args:
        subject: the model.
        point: micro-batch and sequence length.
        checkpointed: whether every block is checkpointed.
        saved_ops: operations whose outputs checkpointed blocks keep, by path; blocks left out keep none.
        skipped: paths of blocks that let their input pass; their calls stay, empty.

    Raises:
        NotDescribable: the model does what no description can hold.
    """
    inputs = subject.example.inputs(point.micro_batch, point.sequence)
    with ExitStack() as stack:
        stack.enter_context(without_collector())
        stack.enter_context(eager_masks())
        stack.enter_context(_passing(subject, skipped))
        kept = saved_ops or {}
        shells = stack.enter_context(_shells(subject, skipped, kept)) if checkpointed else {}
        return _traced(subject, inputs, shells, kept, skipped)


def last_calls_held(subject: Subject, point: TracePoint) -> dict[Label, int]:
    """Of each storage that outlives a call after the one that made it, the last call that it outlives.

    Autograd saves nothing here: what is alive is held by the code around the calls.
    """
    inputs = subject.example.inputs(point.micro_batch, point.sequence)
    with without_collector(), eager_masks():
        tracer = _tracer(subject, inputs, {}, {}, frozenset())
        with tracer.walk.hooked(), WideStatistics(), tracer:  # type: ignore[no-untyped-call]
            with saved_tensors_hooks(_nothing, _nothing), AcceleratorKernels():
                output = _forward(subject, inputs, tracer)
                tracer.begin_loss()
                loss = subject.example.loss(output, *inputs)
            del output, loss
            tracer.begin_backward()
    return {storage.label: storage.last_call for storage in tracer.let_go}


def _traced(
    subject: Subject,
    inputs: Inputs,
    shells: dict[nn.Module, FrontierModule],
    saved_ops: Mapping[str, frozenset[str]],
    skipped: frozenset[str],
) -> RunTrace:
    tracer = _tracer(subject, inputs, shells, saved_ops, skipped)
    walk = tracer.walk
    kernels = AcceleratorKernels()
    gradients = tracer.gradients_of(_named_parameters(subject))
    with walk.hooked(), gradients, WideStatistics(), tracer:  # type: ignore[no-untyped-call]
        _forward_and_backward(subject, inputs, tracer, kernels)
    for call in walk.calls:
        if call.passage is not None:
            subject.passages.setdefault(call.path, call.passage)
    _hand_down(walk.calls)
    return RunTrace(
        calls=walk.calls,
        kept=tracer.kept,
        let_go=tracer.let_go,
        inputs_bytes=distinct_bytes(input_tensors(inputs)),
        attention_draws=kernels.attention_draws,
    )


def _nothing(_: object) -> Any:  # noqa: ANN401 - what autograd keeps in place of a tensor
    return None


def _tracer(
    subject: Subject,
    inputs: Inputs,
    shells: dict[nn.Module, FrontierModule],
    saved_ops: Mapping[str, frozenset[str]],
    skipped: frozenset[str],
) -> Tracer:
    model = subject.example.model
    storages = Storages([*model.parameters(), *model.buffers(), *input_tensors(inputs)])
    in_shells = {item.module for item in shells.values()}
    frontier = {item.module: item for item in reversed(subject.frontier) if item.module not in in_shells}
    joined = {module for module in subject.joined if subject.paths[module] not in skipped}
    return Tracer(ModuleWalk(subject.paths, frontier, shells, joined, storages), storages, saved_ops)


def _hand_down(calls: list[CallTrace]) -> None:
    """What a call whose backward does nothing leaves alive is what the backward before it left."""
    for later, call in pairwise(reversed(calls)):
        if call.output_requires_grad and not (call.live_after_backward or call.kernel_ops[Pass.BACKWARD]):
            call.live_after_backward = later.live_after_backward


def _forward_and_backward(subject: Subject, inputs: Inputs, tracer: Tracer, kernels: AcceleratorKernels) -> None:
    with saved_tensors_hooks(tracer.pack, lambda tensor: tensor):
        with kernels:
            output = _forward(subject, inputs, tracer)
            tracer.begin_loss()
            loss = subject.example.loss(output, *inputs)
        del output
    if not loss.requires_grad:
        raise NoParameters("the loss does not depend on any trainable parameter: there is nothing to train")
    tracer.begin_backward()
    loss.backward()  # type: ignore[no-untyped-call]


def _forward(subject: Subject, inputs: Inputs, tracer: Tracer) -> Any:  # noqa: ANN401 - whatever the model returns
    """Forward as FSDP2 runs it: cast inputs are held until it returns, and later only where autograd saved them."""
    args, kwargs = cast_inputs(inputs, subject.param_dtype)
    output = subject.example.model(*args, **kwargs)
    if subject.output_dtype is None:
        return output
    tracer.begin_output_cast()
    return cast_output(output, subject.output_dtype)


def _named_parameters(subject: Subject) -> dict[str, nn.Parameter]:
    return {
        f"{path}.{name}" if path else name: parameter
        for module, path in subject.paths.items()
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


@contextmanager
def _shells(
    subject: Subject, skipped: frozenset[str], saved_ops: Mapping[str, frozenset[str]]
) -> Iterator[dict[nn.Module, FrontierModule]]:
    items = {item.module: item for item in subject.blocks if item.path not in skipped}
    shells = {module: _shell(module, saved_ops.get(item.path, frozenset())) for module, item in items.items()}
    parents: list[tuple[nn.Module, str, nn.Module]] = []
    for item in subject.frontier:
        if item.module in shells:
            parent_path, _, name = item.path.rpartition(".")
            parent = subject.example.model.get_submodule(parent_path)
            parent._modules[name] = shells[item.module]
            parents.append((parent, name, item.module))
    try:
        yield {shells[module]: item for module, item in items.items()}
    finally:
        for parent, name, module in parents:
            parent._modules[name] = module


def _shell(module: nn.Module, saved_ops: frozenset[str]) -> nn.Module:
    shell = checkpoint_wrapper(
        module,
        CheckpointImpl.NO_REENTRANT,
        context_fn=partial(_forward_and_recompute_contexts, saved_ops),
        preserve_rng_state=False,
        determinism_check="none",
    )
    return shell.train(module.training)


def _forward_and_recompute_contexts(
    saved_ops: frozenset[str],
) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    if not saved_ops:
        return nullcontext(), AcceleratorKernels()
    keeping, finding = selective_contexts(sorted(saved_ops))
    return keeping, _Both(AcceleratorKernels(), finding)


class _Both(ExitStack):
    """Two contexts as one. Holds them when left too, as a checkpoint does: the second has the kept outputs."""

    def __init__(self, *contexts: AbstractContextManager[object]) -> None:
        super().__init__()
        self._contexts = contexts

    def __enter__(self) -> Self:
        for context in self._contexts:
            self.enter_context(context)
        return super().__enter__()


@contextmanager
def _passing(subject: Subject, skipped: frozenset[str]) -> Iterator[None]:
    paths = sorted(skipped)
    modules = [subject.example.model.get_submodule(path) for path in paths]
    before = [vars(module).get("forward") for module in modules]
    for path, module in zip(paths, modules, strict=True):
        module.forward = subject.passages[path]
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward
