"""Sees every aten operation of a forward and backward and books it on the call and region that caused it.

[Note: attribution of backward] Every autograd node carries the value that a counter of the thread had when forward
made it. An operation of the forward reaches the tracer right after its node was made, so the nodes numbered below
the counter and not below its value at the previous operation are its own. In backward the number of the running
node therefore tells the operation, and with it the call and region, exactly. `AccumulateGrad` nodes have no such
number; what they do belongs to the node before.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.schema.base import DType
from planner.schema.model import LOSS_PATH, OUTPUT_PATH, CallRole, RegionKind
from runtime_client.describe.calls import CallTrace, MomentTrace, OpUse, Pass
from runtime_client.describe.errors import DataDependent, DifferentTraces
from runtime_client.describe.ops import UNBOOKED, OpFacts, facts_of, moved_bytes, tensors_in
from runtime_client.describe.storages import Storage, Storages
from runtime_client.describe.walk import ModuleWalk

_ELEMENT_TYPES = frozenset(map(str, DType))
_UNNUMBERED = 2**63
_KERNELS_TO_NAME = (RegionKind.ATTENTION, RegionKind.GROUPED_MATMUL)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One forward and one backward. Use `forward`, `begin_loss`, `begin_backward` in this order, inside `with`."""

    def __init__(self, walk: ModuleWalk, storages: Storages, saved_ops: Mapping[str, frozenset[str]]) -> None:
        """Start before the forward.

        Args:
            walk: where the forward is.
            storages: of the run.
            saved_ops: operations whose outputs selectively checkpointed blocks keep, by path.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.walk = walk
        walk.when_joined = self._note_joined
        self.kept: list[Storage] = []
        """Storages alive when backward begins."""
        self.let_go: list[Storage] = []
        """Storages that are freed by then, but outlived a call after the one that made them."""
        self._storages = storages
        self._saved_ops = saved_ops
        self._node_ends: list[int] = []
        self._node_places: list[tuple[CallTrace, int]] = []
        self._place: tuple[CallTrace, int] | None = None
        self._num_recomputed: dict[int, int] = {}
        self._in_backward_of: CallTrace | None = None

    def begin_output_cast(self) -> None:
        """The modules of the model are done, and FSDP2 casts what the root returns."""
        self.walk.begin(OUTPUT_PATH, CallRole.GLUE)

    def begin_loss(self) -> None:
        """The forward of the model is over, its loss begins."""
        self.walk.begin(LOSS_PATH, CallRole.LOSS)

    def begin_backward(self) -> None:
        """The loss is there and its backward begins; what is alive now is kept."""
        self.walk.end()
        self.walk.in_backward = True
        for call in self.walk.calls:
            call.close()
        self._place = (self.walk.calls[-1], 0)
        self.kept = [storage for storage in self._storages.all if storage.is_alive]
        self.let_go = [
            storage
            for storage in self._storages.all
            if not storage.is_alive and storage.last_call > storage.label[0]
        ]
        for storage in self.kept:
            if not storage.savers:
                storage.savers[storage.label[0]] = 0

    @contextmanager
    def gradients_of(self, parameters: dict[str, nn.Parameter]) -> Iterator[None]:
        """Take the gradient of each parameter out of the count, and away, as soon as it is complete."""
        with ExitStack() as handles:
            for name, parameter in parameters.items():
                if parameter.requires_grad:
                    hook = self._gradient_hook(name)
                    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                    handles.callback(handle.remove)
            yield

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves."""
        if not self.walk.in_backward:
            storage = self._storages.find(tensor)
            if storage is not None:
                call = self.walk.call
                storage.savers.setdefault(call.index, max(0, len(call.regions) - 1))
        return tensor

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        kwargs = kwargs or {}
        if func in UNBOOKED:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs)

    def _run(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        facts = facts_of(op)
        if self._is_bookkeeping():
            return self._run_unbooked(op, args, kwargs)
        step, call, region = self._locate(facts)
        if step is not Pass.FORWARD:
            self._note_end_of_backward(call)
        out = self._execute(op, facts, args, kwargs)
        inputs = list(tensors_in((*args, *kwargs.values())))
        outputs = list(tensors_in((out,)))
        if call.role is CallRole.GLUE and step is Pass.FORWARD:
            self._note_grad_flow(call, inputs)
        is_kernel = self._allocate(facts, step, call, region, outputs) or facts.mutates
        if step is Pass.FORWARD and facts.overload in self._saved_ops.get(call.path, ()):
            for storage in filter(None, map(self._storages.find, outputs)):
                storage.savers.setdefault(call.index, region)
        if facts.host_sync and not _is_constant(args[0]):
            call.regions[region].host_sync = True
        elif is_kernel and not (facts.is_view or facts.allocates_only or facts.host_sync):
            self._count(facts, step, call, region, inputs, outputs, (args, kwargs, out))
        return out

    def _note_end_of_backward(self, call: CallTrace) -> None:
        before, self._in_backward_of = self._in_backward_of, call
        if before is not None and before is not call:
            before.live_after_backward = self._storages.live_bytes

    def _note_joined(self) -> None:
        assert self._place is not None
        call, _ = self._place
        if call.live_before_sums is None:
            call.live_before_sums = self._storages.live_bytes

    def _is_bookkeeping(self) -> bool:
        """Of a checkpoint wrapper, or of what stands for FSDP2."""
        top = self.walk.top
        return self.walk.is_joining or (top is not None and top.is_shell)

    def _run_unbooked(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        out = op(*args, **kwargs)
        for tensor in tensors_in((out,)):
            if self._storages.is_new(tensor) and tensor.numel():
                self._storages.add(tensor, (self.walk.call.index, -1), str(op.overloadpacket))
        return out

    def _locate(self, facts: OpFacts) -> tuple[Pass, CallTrace, int]:
        if not self.walk.in_backward:
            return Pass.FORWARD, *self._locate_forward(facts)
        if self.walk.recomputing is not None:
            return Pass.RECOMPUTE, *self._locate_recompute(self.walk.recomputing, facts)
        return Pass.BACKWARD, *self._locate_backward(facts)

    def _locate_forward(self, facts: OpFacts) -> tuple[CallTrace, int]:
        call = self.walk.call
        module = self.walk.module_in(call)
        if facts.is_view or facts.allocates_only:
            region = call.region_of_view(module)
        else:
            region = call.region_for(module, self._region_kind(facts, call))
        call.ops.append((facts.overload, region))
        end = torch._C._autograd._get_sequence_nr()
        if not self._node_ends or self._node_ends[-1] < end:
            self._node_ends.append(end)
            self._node_places.append((call, region))
        return call, region

    def _locate_recompute(self, call: CallTrace, facts: OpFacts) -> tuple[CallTrace, int]:
        position = self._num_recomputed.get(call.index, 0)
        saved_ops = self._saved_ops.get(call.path, ())
        while position < len(call.ops) and call.ops[position][0] in saved_ops:
            position += 1
        self._num_recomputed[call.index] = position + 1
        if position >= len(call.ops) or call.ops[position][0] != facts.overload:
            raise DifferentTraces(
                f"module {self.walk.where()!r} runs {facts.name} in recomputation where forward did not: "
                "its forward must run the same operations each time"
            )
        return call, min(call.ops[position][1], len(call.regions) - 1)

    def _locate_backward(self, facts: OpFacts) -> tuple[CallTrace, int]:
        node = torch._C._current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            if number < _UNNUMBERED:
                index = min(bisect_right(self._node_ends, number), len(self._node_ends) - 1)
                call, region = self._node_places[index]
                self._place = (call, min(region, len(call.regions) - 1))
        assert self._place is not None
        return self._place

    def _region_kind(self, facts: OpFacts, call: CallTrace) -> RegionKind:
        if facts.kind is not None and facts.kind is not RegionKind.OTHER:
            return facts.kind
        if call.role is CallRole.LOSS:
            return RegionKind.LOSS
        top = self.walk.top
        if top is not None and top.is_norm:
            return RegionKind.NORM
        return facts.kind or RegionKind.ELEMENTWISE

    def _execute(self, op: OpOverload, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        if facts.host_sync and not _is_constant(args[0]):
            return _plausible_scalar(args[0])
        try:
            return op(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise DataDependent(self.walk.where(), facts.name) from error

    def _allocate(self, facts: OpFacts, step: Pass, call: CallTrace, region: int, outputs: list[Tensor]) -> bool:
        before = len(self._storages.all)
        for tensor in outputs:
            if not self._storages.is_new(tensor):
                continue
            if facts.is_view and facts.name != "aten.lift_fresh":
                self._storages.ignore(tensor)
                continue
            number = call.num_allocated if step is Pass.FORWARD else -1
            call.num_allocated += step is Pass.FORWARD
            self._storages.add(tensor, (call.index, number), facts.name)
        if len(self._storages.all) == before:
            return False
        live_bytes = self._storages.live_bytes
        if step is not Pass.FORWARD and call.live_before_sums is not None:
            call.live_in_sums.append(live_bytes)
            return True
        moment = MomentTrace(region=region, live_bytes=live_bytes, num_gradients=len(call.gradient_order))
        (call.forward if step is Pass.FORWARD else call.backward).append(moment)
        return True

    def _count(
        self,
        facts: OpFacts,
        step: Pass,
        call: CallTrace,
        region: int,
        inputs: list[Tensor],
        outputs: list[Tensor],
        operation: tuple[tuple[Any, ...], dict[str, Any], Any],
    ) -> None:
        call.kernel_ops[step].append(facts.name)
        trace = call.regions[region]
        flops = 0 if facts.num_flops is None else facts.num_flops(*operation)
        moved = moved_bytes(facts, inputs, outputs)
        trace.works[step].add(flops, moved)
        if step is Pass.FORWARD:
            call.op_uses.setdefault(facts.overload, OpUse(facts=facts)).work.add(flops, moved)
            if facts.kind in _KERNELS_TO_NAME:
                call.kernels.add(facts.name)
            trace.dtypes.update(_arithmetic_type(inputs, outputs))

    def _note_grad_flow(self, call: CallTrace, inputs: list[Tensor]) -> None:
        if not torch.is_grad_enabled():
            return
        for tensor in inputs:
            if tensor.requires_grad:
                call.output_requires_grad = True
                storage = self._storages.find(tensor)
                if storage is not None and storage.label[0] != call.index:
                    call.input_requires_grad = True

    def _gradient_hook(self, name: str) -> Any:  # noqa: ANN401 - the hook type of torch is not public
        def hook(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            call = self._owner(name)
            call.gradient_order.append(call.relative(name))
            self._storages.become_gradient(parameter.grad)
            parameter.grad = None

        return hook

    def _owner(self, name: str) -> CallTrace:
        assert self._place is not None
        if self._place[0].owns(name):
            return self._place[0]
        owners = [call for call in self.walk.calls if call.owns(name) and call.role is not CallRole.LOSS]
        return max(owners, key=lambda call: (len(call.path), -call.index), default=self._place[0])


def _is_constant(value: Any) -> bool:  # noqa: ANN401 - first argument of any operation
    return not isinstance(value, FakeTensor) or value.constant is not None


def _plausible_scalar(tensor: Tensor) -> bool | int | float:
    """What a check on data most often finds: true, one."""
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1


def _arithmetic_type(inputs: list[Tensor], outputs: list[Tensor]) -> list[DType]:
    for tensor in (*outputs, *inputs):
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_floating_point() and name in _ELEMENT_TYPES:
            return [DType(name)]
    return []
