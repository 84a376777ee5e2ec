"""Follows the forward through the modules: which call runs now, and which module inside it.

[Note: shells] Under full checkpointing a block sits in a checkpoint wrapper. The wrapper (its *shell*) is what
starts and ends the call; the block inside runs once in forward and, by the same hooks, once more in backward.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from planner.schema.model import CallRole
from runtime_client.describe.calls import CallTrace
from runtime_client.describe.errors import RepeatedModule
from runtime_client.describe.frontier import FrontierModule
from runtime_client.describe.join import join_inputs
from runtime_client.describe.passing import find_passage
from runtime_client.describe.storages import Storages


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A module that is running."""

    path: str
    module: nn.Module
    opened: FrontierModule | None
    """What it opened on entry: a call, or a container's turn."""
    is_norm: bool
    is_shell: bool


class ModuleWalk:
    """Keeps the stack of running modules and opens calls; hooks of the modules drive it."""

    def __init__(
        self,
        paths: Mapping[nn.Module, str],
        frontier: Mapping[nn.Module, FrontierModule],
        shells: Mapping[nn.Module, FrontierModule],
        joined: Set[nn.Module],
        storages: Storages,
    ) -> None:
        """Start before the forward.

        Args:
            paths: path of each module of the model.
            frontier: frontier modules that are not in a shell.
            shells: for each checkpoint wrapper the block inside.
            joined: frontier modules whose inputs FSDP2 would join.
            storages: where shells note the inputs that they hold.
        """
        self.calls: list[CallTrace] = []
        self.recomputing: CallTrace | None = None
        self.in_backward = False
        self.when_joined: Callable[[], None] = lambda: None
        """Called in backward when the gradients of a joined module's inputs are there."""
        self.is_joining = False
        self._paths = paths
        self._frontier = {**frontier, **shells}
        self._shells = shells
        self._joined = joined
        self._blocks_in_shells = {item.module: item for item in shells.values()}
        self._storages = storages
        self._stack: list[Frame] = []
        self._containers: list[str] = []
        self._num_turns: Counter[str] = Counter()
        self._current: CallTrace | None = None
        self._runs: dict[str, list[CallTrace]] = {}
        self._num_runs: dict[nn.Module, int] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Have the modules drive this walk."""
        with ExitStack() as handles:
            for module in {**self._paths, **self._shells}:
                before = module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True)
                after = module.register_forward_hook(self._leave, with_kwargs=True, always_call=True)
                handles.callback(before.remove)
                handles.callback(after.remove)
            yield

    @property
    def top(self) -> Frame | None:
        """The innermost running module."""
        return self._stack[-1] if self._stack else None

    @property
    def call(self) -> CallTrace:
        """The call that runs now; code of a container opens one of its own."""
        if self._current is None:
            self._open(self._containers[-1] if self._containers else "", CallRole.GLUE)
        assert self._current is not None
        return self._current

    def module_in(self, call: CallTrace) -> str:
        """Path of the innermost running module, relative to a call."""
        frame = self.top
        return call.relative(frame.path) if frame is not None and call.owns(frame.path) else ""

    def where(self) -> str:
        """Path of the innermost running module, for messages."""
        return self.top.path if self.top is not None else ""

    def begin(self, path: str, role: CallRole) -> CallTrace:
        """Open a call that no module stands for (the cast of the output, the loss)."""
        call = self._open(path, role)
        call.input_requires_grad = call.output_requires_grad = True
        return call

    def end(self) -> None:
        """The call that runs now is over."""
        if self._current is not None:
            self._current.live_at_return = self._current.live_after_forward = self._storages.live_bytes
            self._storages.last_ended = self._current.index
        self._current = None

    def _open(self, path: str, role: CallRole) -> CallTrace:
        self.end()
        if self.calls:
            self.calls[-1].live_after_forward = self._storages.live_bytes
        turns = {container: self._num_turns[container] for container in self._containers}
        call = CallTrace(index=len(self.calls), path=path, role=role, turns=turns)
        self.calls.append(call)
        self._current = call
        return call

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        opened = None
        try:
            if self.in_backward:
                self._recompute(module)
            else:
                opened = self._open_for(module, args, kwargs)
        finally:
            self._stack.append(self._frame(module, opened))
        if opened is None or opened.module not in self._joined:
            return args, kwargs
        self.is_joining = True
        try:
            return join_inputs(args, kwargs, self.when_joined)
        finally:
            self.is_joining = False

    def _frame(self, module: nn.Module, opened: FrontierModule | None) -> Frame:
        is_shell = module in self._shells
        return Frame(
            path=self._shells[module].path if is_shell else self._paths[module],
            module=module,
            opened=opened,
            is_norm="norm" in type(module).__name__.lower(),
            is_shell=is_shell,
        )

    def _recompute(self, module: nn.Module) -> None:
        if not self._stack and module in self._blocks_in_shells:
            self.recomputing = self._runs[self._blocks_in_shells[module].path].pop()

    def _open_for(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrontierModule | None:
        item = self._frontier.get(module)
        if item is None or (self._current is not None and self._current.role is not CallRole.GLUE):
            self._refuse_weights_shared_over_depth(module)
            return None
        if item.is_container:
            self._containers.append(item.path)
            self._num_turns[item.path] += 1
            self.end()
            return item
        self._refuse_second_run(item)
        call = self._open(item.path, item.role)
        self._runs.setdefault(item.path, []).append(call)
        tensors = _tensors((args, kwargs))
        call.input_requires_grad = any(tensor.requires_grad for tensor in tensors)
        call.boundary_bytes += sum(tensor.nbytes for tensor in tensors)
        if module in self._shells:
            self._hold(call, tensors)
        return item

    def _hold(self, call: CallTrace, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = self._storages.find(tensor)
            if storage is not None:
                storage.savers.setdefault(call.index, 0)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:  # noqa: ANN401
        frame = self._stack.pop()
        assert frame.module is module, "modules end in the reverse order of their start"
        if self.in_backward and not self._stack:
            self.recomputing = None
        if frame.opened is None:
            return
        if frame.opened.is_container:
            self._containers.pop()
        else:
            call = self._runs[frame.opened.path][-1]
            tensors = _tensors(output)
            call.output_requires_grad = any(tensor.requires_grad for tensor in tensors)
            call.boundary_bytes += sum(tensor.nbytes for tensor in tensors)
            call.passage = find_passage(args, kwargs, output)
        self.end()

    def _refuse_second_run(self, item: FrontierModule) -> None:
        if item.path in self._runs and not item.may_repeat and any(True for _ in item.module.parameters()):
            raise RepeatedModule(item.path)

    def _refuse_weights_shared_over_depth(self, module: nn.Module) -> None:
        if self._current is None or self._current.path or not module._parameters:
            return
        self._num_runs[module] = self._num_runs.get(module, 0) + 1
        if self._num_runs[module] > 1:
            raise RepeatedModule(self._paths[module])


def _tensors(value: Any) -> list[torch.Tensor]:  # noqa: ANN401 - arguments or results of any module
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
