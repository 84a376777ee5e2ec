"""Activation offload: what chosen modules keep for backward waits in pinned host memory.

[Note: lifetimes] A run of an offloaded module hands autograd a handle for each tensor that it saves. After its
forward a side stream copies the storages behind these handles to the host, each once. The device tensors are held
until the next call is through its forward, when the compute stream waits for the copies. Backward fetches one
module ahead. Device tensors are made and freed on the compute stream alone and so need no `record_stream`: whoever
drops one lets compute wait for the copies first. A fetched storage belongs to its handles: it goes with its last
use.

[Note: what stays] Only memory depends on what is offloaded, never a result, since each handle gives back the tensor
that went in. Parameters, buffers and inputs of the model stay on the device. So do storages that others save too,
as position tables: the first forward surveys who saves what, and itself takes for shared whatever comes into a
module without a gradient.

[Note: calls] A call is what the planner takes for one: a module of its frontier, or a part of a block that a plan
looks into. Code between modules and the loss cannot be seen from here, so the next call is the next of a module.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from planner.schema import ActivationPolicy, Decisions
from runtime_client.apply.modules import find_module, inner_module
from runtime_client.apply.offload_run import Key, Run, Saved, Stored, Survey, unchanged
from runtime_client.apply.units import is_below
from runtime_client.describe.frontier import FrontierModule, find_frontier
from runtime_client.errors import UnsupportedPlan

SCOPE = "Shardwright::"
"""Of the profiler labels of copies: `Shardwright::activation_out (layers.0)`, `... activation_in ...`."""
_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


def check_offloading(decisions: Decisions) -> None:
    """Refuse an offloaded module with another one inside or around it that the plan does something to."""
    chosen = [entry for entry in decisions.activations if entry.policy is not ActivationPolicy.NONE]
    for entry in chosen:
        for other in chosen:
            is_nested = is_below(entry.module, other.module) or is_below(other.module, entry.module)
            if entry.policy is ActivationPolicy.OFFLOAD and is_nested and other is not entry:
                raise UnsupportedPlan(
                    f"decisions.activations: {entry.module!r} is offloaded, and {other.module!r} inside or around "
                    f"it has policy {other.policy}. Keep one of the two."
                )


def offload_activations(model: nn.Module, decisions: Decisions, device_type: str) -> "ActivationOffload | None":
    """Make the modules with policy `offload` do so; None where there are none.

    Call it on a checked model before anything wraps or shards its modules: what it adds to their forward then runs
    inside the hooks of FSDP2, with parameters gathered.
    """
    paths = [entry.module for entry in decisions.activations if entry.policy is ActivationPolicy.OFFLOAD]
    if not paths:
        return None
    offload = ActivationOffload(device_type)
    for path in paths:
        _wrap_forward(inner_module(find_module(model, path, where="decisions.activations")), offload.run, path)
    for module in _calls(model, decisions):
        _wrap_forward(module, offload.pass_by)
    for entry in decisions.activations:
        if entry.policy in (ActivationPolicy.FULL, ActivationPolicy.SELECTIVE):
            module = inner_module(find_module(model, entry.module, where="decisions.activations"))
            module.register_forward_pre_hook(offload.note_kept_inputs, with_kwargs=True)
    _wrap_forward(model, offload.run_root)
    return offload


class ActivationOffload:
    """Copies between device and host for one model, on a stream of their own."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._device = torch.get_device_module(device_type)
        self.stream = self._device.Stream()
        self._turns: Counter[str] = Counter()
        self._survey: Survey | None = None
        self._shared: dict[Key, tuple[bool, ...]] = {}
        self._inputs: set[int] = set()
        """Storages of the model's inputs."""
        self._runs: list[weakref.ref[Run]] = []
        """Runs of the present forward that copied something, in order."""
        self._leaving: list[Run] = []
        """Runs whose copies to the host compute has not waited for."""
        self._arriving: dict[Run, list[Tensor]] = {}
        """Runs whose copies to the device compute has not waited for, with these."""

    def watch_inputs(self, model: nn.Module) -> None:
        """Look at the inputs of a sharded model before FSDP2 casts them: those that it casts are activations."""
        model.register_forward_pre_hook(self._note_inputs, prepend=True, with_kwargs=True)

    def _note_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs = {_identity(tensor) for tensor in _tensors((args, kwargs))}

    # Forward

    def run_root(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Forward of the model: begins anew, whatever became of the forward before."""
        self._settle()
        self._runs, self._turns = [], Counter()
        try:
            if self._shared or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            self._survey = Survey()
            with saved_tensors_hooks(self._survey.pack, unchanged):
                output = forward(*args, **kwargs)
            self._shared = self._survey.shared()
            return output
        finally:
            self._survey, self._inputs = None, set()
            self._release(list(self._leaving))

    def pass_by(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Forward of a call, after which what earlier ones sent is let go."""
        before = list(self._leaving)
        output = forward(*args, **kwargs)
        self._release([run for run in before if run in self._leaving])
        return output

    def note_kept_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A checkpointed module keeps its inputs."""
        if self._survey is not None:
            for tensor in _tensors((args, kwargs)):
                self._survey.note(tensor, None)

    def run(self, path: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Forward of an offloaded module."""
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        run = Run(key=(path, self._turns[path]))
        self._turns[path] += 1
        with saved_tensors_hooks(run.pack, self._unpack):
            output = forward(*args, **kwargs)
        self._send(run, self._chosen(run, module, _tensors((args, kwargs))))
        for node in {tensor.grad_fn for tensor in _tensors(output)} - {None}:
            assert node is not None
            node.register_prehook(partial(self._before_backward, run))
        return output

    def _chosen(self, run: Run, module: nn.Module, inputs: Iterable[Tensor]) -> list[list[Saved]]:
        """Of the storages that a run keeps those that go to the host, each with its handles."""
        outside = _parameters_and_buffers(module) | self._inputs
        groups = [group for group in run.by_storage(self._device_type) if group[0].identity not in outside]
        shared = self._shared.get(run.key, ())
        if self._survey is not None:
            self._survey.note_run(run.key, [group[0].on_device for group in groups])
        if len(shared) != len(groups):
            constants = {_identity(tensor) for tensor in inputs if not tensor.requires_grad}
            shared = tuple(group[0].identity in constants for group in groups)
        return [group for group, stays in zip(groups, shared, strict=True) if not stays]

    def _send(self, run: Run, groups: list[list[Saved]]) -> None:
        if not groups:
            return
        with self._copying("activation_out", run):
            for group in groups:
                run.keep(Stored(group[0].on_device, pin=self._device_type != "cpu"), group)
        self._leaving.append(run)
        self._runs.append(weakref.ref(run))
        run.forward = self._runs

    def _release(self, runs: list[Run]) -> None:
        """Let go of the device tensors of runs whose copies are on the host for all later work."""
        for run in runs:
            self._device.current_stream().wait_event(run.copied)
            run.release()
            self._leaving.remove(run)

    def _settle(self) -> None:
        """Let go of all that copies still use, after an exception or a backward that never came."""
        self._release(list(self._leaving))
        for run in list(self._arriving):
            self._wait_for(run)

    # Backward

    def _unpack(self, saved: Saved) -> Tensor:
        if saved.stored is None:
            return saved.unchanged()
        assert saved.run is not None
        if saved.run in self._arriving or saved.stored.on_device is None:
            self._before_backward(saved.run)
        return saved.restored()

    def _before_backward(self, run: Run, *_: object) -> None:
        """Have what a run keeps on the device, and begin to fetch what the run before it keeps."""
        if run in self._leaving:
            self._release([run])
        self._fetch(run)
        self._wait_for(run)
        before = None if run.is_begun else run.before()
        run.is_begun = True
        if before is not None:
            self._fetch(before)

    def _fetch(self, run: Run) -> None:
        absent = [stored for stored in run.stored() if stored.on_device is None]
        if not absent:
            return
        for stored in absent:
            stored.make_room()
        with self._copying("activation_in", run):
            for stored in absent:
                stored.fetch()
        self._arriving[run] = [stored.on_device for stored in absent if stored.on_device is not None]

    def _wait_for(self, run: Run) -> None:
        if run in self._arriving:
            self._device.current_stream().wait_event(run.copied)
            del self._arriving[run]

    @contextmanager
    def _copying(self, label: str, run: Run) -> Iterator[None]:
        """Copies inside follow all that compute was given so far."""
        self.stream.wait_stream(self._device.current_stream())
        with torch.no_grad(), record_function(f"{SCOPE}{label} ({run.key[0]})"), self._device.stream(self.stream):
            yield
        run.copied = self.stream.record_event()


def _wrap_forward(module: nn.Module, around: Callable[..., Any], *first: object) -> None:
    forward = module.forward

    @wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the module takes and returns
        return around(*first, module, forward, *args, **kwargs)

    module.forward = wrapped


def _calls(model: nn.Module, decisions: Decisions) -> set[nn.Module]:
    """Modules that are calls for the planner: its frontier, blocks opened where the plan does something inside."""
    inside = [path for unit in decisions.units for path in unit.modules]
    inside += [entry.module for entry in decisions.activations]
    return {
        inner_module(item.module)
        for frontier in find_frontier(model)
        if not frontier.is_container
        for item in _opened(frontier, inside)
    }


def _opened(item: FrontierModule, inside: list[str]) -> Iterator[FrontierModule]:
    if any(path != item.path and is_below(path, item.path) for path in inside):
        for part in _parts(item):
            yield from _opened(part, inside)
    else:
        yield item


def _parts(item: FrontierModule) -> Iterator[FrontierModule]:
    for name, child in inner_module(item.module).named_children():
        part = FrontierModule(path=f"{item.path}.{name}", module=child, role=item.role)
        if isinstance(child, _WITHOUT_FORWARD):
            yield from _parts(part)
        elif any(True for _ in child.parameters()):
            yield part


def _parameters_and_buffers(module: nn.Module) -> set[int]:
    """Storages of those in a module; for units of FSDP2 inside it those of the gathered parameters."""
    found: list[Tensor | None] = []
    for part in module.modules():
        found += [*part._parameters.values(), *part._buffers.values()]
        if isinstance(part, FSDPModule):
            groups = part._get_fsdp_state()._fsdp_param_groups
            found += [getattr(one, "_unsharded_param", None) for group in groups for one in group.fsdp_params]
    return {_identity(tensor) for tensor in found if tensor is not None and not isinstance(tensor, DTensor)}


def _identity(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Tensor]:  # noqa: ANN401 - arguments or results of any module
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
