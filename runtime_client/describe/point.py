"""Turns the runs at one point into call kinds whose quantities are constants.

[Note: what is kept] A storage alive between forward and backward is kept by the calls that save it: those whose
autograd nodes pack it and, under full checkpointing, the block whose argument it is. A storage kept by one call
belongs to it; kept by several under any policy it is shared, so that each mix of policies counts it once. One that
nobody saves but something still holds is kept by the call that made it. A moment of a call is everything alive less
what earlier calls keep, so that the sum over calls gives back exactly what was alive. A shared storage that only
one policy keeps, as the position biases that blocks hand on, says so (`kept_by`); in backward it counts as kept
down to the first call that might keep it, once too often in blocks before the first one that does.

[Note: what callers hold] The code around the calls may hold a storage longer than the first call that keeps it
runs: a decoder's `inputs_embeds`, position ids, position biases. Where autograd alone saves it nowhere and only
checkpointed blocks keep it, it is shared too, even if one block alone does, and says for how long it is held
(`held_until`). In forward it is alive till then under all policies, and moments leave it out as if it were kept.
What one block saves by itself and callers hold longer is named beside (`held_inputs`), for blocks that send what
they keep to the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.schema.model import (
    CallKind,
    CallRole,
    HeldInput,
    KeptBy,
    Liveness,
    Moment,
    Region,
    SavedTensor,
    SharedTensor,
    TracePoint,
    Work,
)
from planner.schema.polynomial import Polynomial
from runtime_client.describe.calls import CallTrace, MomentTrace, Pass, RegionTrace, WorkCount
from runtime_client.describe.errors import AbsurdActivations, DifferentTraces
from runtime_client.describe.run import RunTrace
from runtime_client.describe.storages import Label, Storage

MAX_KEPT_RATIO = 64
"""A block may keep this many times its inputs, outputs and parameters; eager attention stays far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCall:
    """A call at one point; `kind` has constants for polynomials."""

    path: str
    kind: CallKind
    ops: tuple[tuple[str, ...], ...]
    """Kernels of forward, backward and recomputation."""
    has_work: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTrace:
    """All calls at one point, those without work included, and the storages that several of them save."""

    point: TracePoint
    calls: tuple[PointCall, ...]
    shared: dict[Label, SharedTensor]
    held_inputs: dict[Label, HeldInput]
    inputs_bytes: Polynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Which call keeps which storage, under one policy; `own` is indexed by call."""

    own: list[list[Storage]]
    kept_before: list[int]
    """Bytes that the calls before each call keep."""
    held: tuple["Held", ...] = ()
    """What nobody keeps, but callers hold."""

    def held_bytes(self, since: int, until: int) -> int:
        """Bytes that callers hold from the forward of call `since`, or an earlier one, through that of `until`."""
        return sum(held.size_bytes for held in self.held if held.first_call <= since and until <= held.last_call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A storage that counts as held from the forward of its first call through that of its last one."""

    first_call: int
    last_call: int
    size_bytes: int


def trace_point(
    point: TracePoint, plain: RunTrace, checkpointed: RunTrace | None, last_calls: Mapping[Label, int]
) -> PointTrace:
    """Combine a run without and a run with full checkpointing of every block.

    Args:
        point: of the runs.
        plain: the run without.
        checkpointed: the other; None where there are no blocks.
        last_calls: of storages that callers hold, the last call through whose forward they do.

    Raises:
        DifferentTraces: the runs do not make the same calls.
    """
    runs = [plain] if checkpointed is None else [plain, checkpointed]
    _require_equal_calls(runs)
    shared = _shared(runs)
    plain_ledger = ledger_of(plain, shared)
    full_ledger = None if checkpointed is None else ledger_of(checkpointed, shared, _sizes(plain_ledger.own))
    calls = []
    for index, call in enumerate(plain.calls):
        again = checkpointed.calls[index] if checkpointed is not None else None
        full = None
        if again is not None and full_ledger is not None and call.role is CallRole.BLOCK:
            full = liveness_of(again, full_ledger)
        calls.append(point_call(call, again, liveness_of(call, plain_ledger), full))
    inputs_bytes = constant(plain.inputs_bytes)
    return PointTrace(
        point=point,
        calls=tuple(calls),
        shared=shared,
        held_inputs=_held_inputs(plain, shared, last_calls),
        inputs_bytes=inputs_bytes,
    )


def _held_inputs(
    plain: RunTrace, shared: Mapping[Label, SharedTensor], last_calls: Mapping[Label, int]
) -> dict[Label, HeldInput]:
    """What a block alone keeps, and callers hold after its forward."""
    blocks = {call.index for call in plain.calls if call.role is CallRole.BLOCK}
    return {
        storage.label: HeldInput(
            size_bytes=constant(storage.size_bytes), call=saver, held_until=last_calls[storage.label]
        )
        for storage in sorted(plain.kept, key=lambda storage: storage.label)
        for saver in storage.savers
        if storage.label not in shared and saver in blocks and last_calls.get(storage.label, -1) > saver
    }


def refuse_absurd_activations(trace: PointTrace, plain: RunTrace, parameter_bytes: dict[str, int]) -> None:
    """Refuse blocks that keep more than `MAX_KEPT_RATIO` times what goes in, comes out and is learned.

    Args:
        trace: the model at one point.
        plain: the run that it comes from.
        parameter_bytes: bytes of parameters by path of a block.

    Raises:
        AbsurdActivations: for the first such block.
    """
    for index, call in enumerate(trace.calls):
        if call.kind.role is CallRole.BLOCK:
            kept = sum(int(tensor.size_bytes.one) for tensor in call.kind.none.saved)
            limit = MAX_KEPT_RATIO * (plain.calls[index].boundary_bytes + parameter_bytes.get(call.path, 0))
            if kept > limit:
                raise AbsurdActivations(call.path, kept, limit)


def _require_equal_calls(runs: list[RunTrace]) -> None:
    paths = [[call.path for call in run.calls] for run in runs]
    if paths[0] != paths[-1]:
        position = next(
            (index for index, (a, b) in enumerate(zip(paths[0], paths[-1], strict=False)) if a != b),
            min(map(len, paths)),
        )
        raise DifferentTraces(
            f"with its blocks checkpointed the model makes other calls, from call {position} on: "
            f"{paths[0][position : position + 1]} became {paths[-1][position : position + 1]}; "
            "its forward must not depend on the class of its blocks"
        )


def _shared(runs: list[RunTrace]) -> dict[Label, SharedTensor]:
    savers: dict[Label, set[int]] = {}
    sizes: dict[Label, int] = {}
    held_until = {storage.label: storage.last_call for storage in runs[0].let_go if storage.label[1] >= 0}
    for run in runs:
        for storage in run.kept:
            savers.setdefault(storage.label, set()).update(storage.savers)
            sizes[storage.label] = storage.size_bytes
    kept = [{storage.label for storage in run.kept} for run in runs]
    return {
        label: SharedTensor(
            size_bytes=constant(sizes[label]),
            first_call=min(calls),
            last_call=max(calls),
            kept_by=_kept_by(label in kept[0], label in kept[-1]),
            held_until=held_until[label] if held_until.get(label, 0) > min(calls) else None,
        )
        for label, calls in sorted(savers.items())
        if len(calls) > 1 or held_until.get(label, 0) > min(calls)
    }


def _kept_by(plain: bool, checkpointed: bool) -> KeptBy:
    if plain and checkpointed:
        return KeptBy.BOTH
    return KeptBy.NONE if plain else KeptBy.FULL


def ledger_of(run: RunTrace, shared: dict[Label, SharedTensor], plain_bytes: Sequence[int] | None = None) -> Ledger:
    """Sort what a run keeps by call. Where several keep a storage that is not shared, each has it.

    Args:
        run: the run.
        shared: storages that count once.
        plain_bytes: what each call keeps for itself without checkpointing. Calls that are no blocks are described
            by that alone, so it says what they keep.
    """
    own: list[list[Storage]] = [[] for _ in run.calls]
    for storage in run.kept:
        if storage.label not in shared:
            for index in storage.savers:
                own[index].append(storage)
    kept = _sizes(own)
    if plain_bytes is not None:
        kept = [kept[call.index] if call.role is CallRole.BLOCK else plain_bytes[call.index] for call in run.calls]
    alive = {storage.label for storage in run.kept}
    for label, tensor in shared.items():
        kept[tensor.first_call] += int(tensor.size_bytes.one) if label in alive else 0
    held = tuple(
        Held(first_call=tensor.first_call, last_call=tensor.held_until, size_bytes=int(tensor.size_bytes.one))
        for label, tensor in shared.items()
        if tensor.held_until is not None and label not in alive
    )
    return Ledger(own=own, kept_before=[sum(kept[:index]) for index in range(len(kept))], held=held)


def _sizes(own: list[list[Storage]]) -> list[int]:
    return [sum(storage.size_bytes for storage in storages) for storages in own]


def liveness_of(call: CallTrace, ledger: Ledger) -> Liveness:
    """What a call keeps and needs in one run, less what the ledger says that earlier calls keep."""
    saved = sorted(ledger.own[call.index], key=lambda storage: storage.label)
    index, before = call.index, ledger.kept_before[call.index]
    kept = before + sum(storage.size_bytes for storage in saved)
    if index + 1 < len(ledger.kept_before):
        kept = max(kept, ledger.kept_before[index + 1])  # shared storages that the call is the first to keep
    after_forward = max(0, call.live_after_forward - kept - ledger.held_bytes(index, index + 1))
    before_forward = before + ledger.held_bytes(index - 1, index)
    at_return = call.live_at_return - kept - ledger.held_bytes(index, index)
    after_backward = max(0, call.live_after_backward - before)

    def beyond(live_bytes: int) -> Polynomial:
        return constant(max(0, live_bytes - before - after_backward))

    return Liveness(
        saved=tuple(_saved_tensor(storage, call) for storage in saved),
        forward=tuple(_moment(moment, call, before_forward) for moment in call.forward),
        backward=tuple(_moment(moment, call, before) for moment in call.backward),
        at_return=constant(max(0, at_return - after_forward)),
        after_forward=constant(after_forward),
        after_backward=constant(after_backward),
        before_sums=beyond(call.live_before_sums or 0),
        in_sums=tuple(map(beyond, call.live_in_sums)),
    )


def _saved_tensor(storage: Storage, call: CallTrace) -> SavedTensor:
    made_inside = storage.label[0] == call.index
    return SavedTensor(
        size_bytes=constant(storage.size_bytes),
        op=storage.op if made_inside else "",
        region=_existing(storage.savers.get(call.index, 0), call),
        from_input=not made_inside,
    )


def _moment(moment: MomentTrace, call: CallTrace, kept_before: int) -> Moment:
    return Moment(
        region=_existing(moment.region, call),
        live_bytes=constant(moment.live_bytes - kept_before),
        num_gradients=moment.num_gradients,
    )


def _existing(region: int, call: CallTrace) -> int:
    return min(region, len(call.regions) - 1)


def point_call(call: CallTrace, again: CallTrace | None, none: Liveness, full: Liveness | None) -> PointCall:
    """A call from its traces without (`call`) and with (`again`) checkpointing."""
    recomputed = again if full is not None and again is not None else call
    regions = tuple(
        _region(region, other.works[Pass.RECOMPUTE])
        for region, other in zip(call.regions, recomputed.regions, strict=True)
    )
    kind = CallKind(
        role=call.role,
        regions=regions,
        none=none,
        full=full,
        gradient_order=tuple(call.gradient_order),
        input_requires_grad=call.input_requires_grad,
        output_requires_grad=call.output_requires_grad,
        kernels=tuple(sorted(call.kernels)),
    )
    ops = (
        tuple(call.kernel_ops[Pass.FORWARD]),
        tuple(call.kernel_ops[Pass.BACKWARD]),
        tuple(recomputed.kernel_ops[Pass.RECOMPUTE]),
    )
    return PointCall(
        path=call.path,
        kind=kind,
        ops=ops,
        has_work=call.role is CallRole.LOSS or call.has_work or bool(none.saved),
    )


def _region(region: RegionTrace, recompute: WorkCount) -> Region:
    return Region(
        module=region.module,
        kind=region.kind,
        dtype=region.dtype,
        forward=work_of(region.works[Pass.FORWARD]),
        backward=work_of(region.works[Pass.BACKWARD]),
        recompute=work_of(recompute),
        host_sync=region.host_sync,
    )


def work_of(count: WorkCount) -> Work:
    """Work at one point."""
    return Work(flops=constant(count.flops), moved_bytes=constant(count.moved_bytes), num_kernels=count.num_kernels)


def constant(value: int) -> Polynomial:
    """What a quantity is at one point."""
    return Polynomial(one=value)
