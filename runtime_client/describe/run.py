"""Runs a prepared model once under the tracer, at one point and under one activation policy."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from planner.schema.base import DType
from planner.schema.model import CallRole, TracePoint
from runtime_client.describe.calls import CallTrace
from runtime_client.describe.errors import NoParameters
from runtime_client.describe.example import Inputs, TrainingExample, input_tensors
from runtime_client.describe.frontier import FrontierModule
from runtime_client.describe.kernels import AcceleratorKernels, eager_masks
from runtime_client.describe.prepare import cast_inputs, distinct_bytes
from runtime_client.describe.storages import Storage, Storages
from runtime_client.describe.tracer import Tracer
from runtime_client.describe.walk import ModuleWalk


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model made ready by `prepare`: every registered parameter is its own, in `param_dtype`."""

    example: TrainingExample
    frontier: tuple[FrontierModule, ...]
    param_dtype: DType | None
    paths: dict[nn.Module, str] = field(default_factory=dict)

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
    inputs_bytes: int
    """Tensor arguments, in their own types."""


def run(
    subject: Subject, point: TracePoint, *, checkpointed: bool, skipped: frozenset[str] = frozenset()
) -> RunTrace:
    """Trace one forward and backward.

    Args:
        subject: the model.
        point: micro-batch and sequence length.
        checkpointed: whether every block is fully checkpointed.
        skipped: paths of blocks that let their input pass; their calls stay, empty.

    Raises:
        NotDescribable: the model does what no description can hold.
    """
    inputs = subject.example.inputs(point.micro_batch, point.sequence)
    with ExitStack() as stack:
        stack.enter_context(_without_collector())
        stack.enter_context(eager_masks())
        stack.enter_context(_passing(subject, skipped))
        shells = stack.enter_context(_shells(subject, skipped)) if checkpointed else {}
        return _traced(subject, inputs, shells)


def _traced(subject: Subject, inputs: Inputs, shells: dict[nn.Module, FrontierModule]) -> RunTrace:
    model = subject.example.model
    storages = Storages([*model.parameters(), *model.buffers(), *input_tensors(inputs)])
    in_shells = {item.module for item in shells.values()}
    frontier = {item.module: item for item in reversed(subject.frontier) if item.module not in in_shells}
    walk = ModuleWalk(subject.paths, frontier, shells, storages)
    tracer = Tracer(walk, storages)
    with walk.hooked(), tracer.gradients_of(_named_parameters(subject)), tracer:
        _forward_and_backward(subject, inputs, tracer)
    return RunTrace(calls=walk.calls, kept=tracer.kept, inputs_bytes=distinct_bytes(input_tensors(inputs)))


def _forward_and_backward(subject: Subject, inputs: Inputs, tracer: Tracer) -> None:
    with saved_tensors_hooks(tracer.pack, lambda tensor: tensor):
        with AcceleratorKernels():
            output = _forward(subject, inputs)
            tracer.begin_loss()
            loss = subject.example.loss(output, *inputs)
        del output
    if not loss.requires_grad:
        raise NoParameters("the loss does not depend on any trainable parameter: there is nothing to train")
    tracer.begin_backward()
    loss.backward()  # type: ignore[no-untyped-call]


def _forward(subject: Subject, inputs: Inputs) -> Any:  # noqa: ANN401 - whatever the model returns
    """Forward as FSDP2 runs it: cast inputs are held until it returns, and later only where autograd saved them."""
    args, kwargs = cast_inputs(inputs, subject.param_dtype)
    return subject.example.model(*args, **kwargs)


def _named_parameters(subject: Subject) -> dict[str, nn.Parameter]:
    return {
        f"{path}.{name}" if path else name: parameter
        for module, path in subject.paths.items()
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


@contextmanager
def _shells(subject: Subject, skipped: frozenset[str]) -> Iterator[dict[nn.Module, FrontierModule]]:
    placed: dict[nn.Module, FrontierModule] = {}
    parents: list[tuple[nn.Module, str, nn.Module]] = []
    for item in subject.blocks:
        if item.path in skipped:
            continue
        parent_path, _, name = item.path.rpartition(".")
        parent = subject.example.model.get_submodule(parent_path)
        shell = checkpoint_wrapper(
            item.module,
            CheckpointImpl.NO_REENTRANT,
            context_fn=_forward_and_recompute_contexts,
            preserve_rng_state=False,
            determinism_check="none",
        )
        shell.train(item.module.training)
        parent._modules[name] = shell
        parents.append((parent, name, item.module))
        placed[shell] = item
    try:
        yield placed
    finally:
        for parent, name, module in parents:
            parent._modules[name] = module


def _forward_and_recompute_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    return nullcontext(), AcceleratorKernels()


@contextmanager
def _passing(subject: Subject, skipped: frozenset[str]) -> Iterator[None]:
    modules = [item.module for item in subject.blocks if item.path in skipped]
    before = [vars(module).get("forward") for module in modules]
    for module in modules:
        module.forward = _pass_first_argument
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _pass_first_argument(first: Tensor, *_: object, **__: object) -> Tensor:
    return first


@contextmanager
def _without_collector() -> Iterator[None]:
    """Frees must come from reference counts alone, or they would come at a different moment in each run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
