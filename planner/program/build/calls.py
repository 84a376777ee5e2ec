"""The model's own work: forward, recomputation and backward of calls, with the memory that they need."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from planner.program.build.activation_offloads import ActivationOffloads
from planner.program.build.emitter import Emitter
from planner.program.build.in_flight import InFlight, Sizes
from planner.program.build.reductions import Reductions
from planner.program.build.shared_tensors import SharedTensors
from planner.program.choices import ALWAYS, Condition
from planner.program.events import OperationKind, Phase, Stream
from planner.program.parts import ExpandedBlock
from planner.program.step import KEEP, RECOMPUTE, Activation, Durations, Knobs, StepInputs
from planner.program.units import ROOT
from planner.schema import ActivationPolicy, CallKind, CallRole, Liveness, MemoryCategory, Moment, Polynomial

_ACTIVATIONS = MemoryCategory.ACTIVATIONS
_TRANSIENTS = MemoryCategory.TRANSIENTS
_GRADIENTS = MemoryCategory.UNSHARDED_GRADIENTS
Parts = tuple[tuple[MemoryCategory, int], ...]


@dataclass(frozen=True, slots=True)
class _Worst:
    """The allocation point of a call at which most is alive."""

    index: int
    live: int
    gradients: int


class Calls:
    """Emits calls; `passes` names the units whose pass has begun and not ended, the innermost last."""

    def __init__(
        self, inputs: StepInputs, knobs: Knobs, durations: Durations, emitter: Emitter, reductions: Reductions
    ) -> None:
        self.passes: list[int] = []
        self.in_flight = InFlight(emitter)
        self._in_recomputation = InFlight(emitter)
        self._inputs = inputs
        self._knobs = knobs
        self._durations = durations
        self._emitter = emitter
        self._reductions = reductions
        self._partition = inputs.partition
        self._model = inputs.partition.model
        self._shared = SharedTensors(inputs, knobs, emitter)
        self._offloads = ActivationOffloads(inputs, durations, emitter)
        self._worst_forward = cache(self._find_worst_forward)
        self._worst_backward = cache(self._find_worst_backward)
        self._own_kept = cache(self._find_own_kept)
        self._bytes = cache(self._find_bytes)
        self._delivered: dict[int, int] = {}
        """Bytes of the gradients that autograd delivers in the backward of each call."""
        for sizes, deliveries in zip(inputs.gradients, inputs.deliveries, strict=True):
            for size, delivery in zip(sizes, deliveries, strict=False):
                self._delivered[delivery] = self._delivered.get(delivery, 0) + size
        self._unfinished: dict[int, list[str]] = {}
        """Sums that autograd holds, by the call in whose backward it delivers them."""
        self._block_of = {
            call: block
            for block in self._partition.blocks
            if block.path in knobs.checkpointed_blocks
            for call in range(block.first, block.last + 1)
        }

    def kind(self, call: int) -> CallKind:
        """What a call does."""
        return self._model.kinds[self._model.calls[call].kind]

    def checkpointed_block(self, call: int) -> ExpandedBlock | None:
        """The block that recomputes the call as one of its parts."""
        return self._block_of.get(call)

    # Forward

    def forward(self, call: int) -> None:
        """Forward of a call, and what it keeps."""
        entry = self._model.calls[call]
        name, kind = entry.kind, self.kind(call)
        block = self._block_of.get(call)
        options = list(self._options(call))
        self.in_flight.land()
        self._touch_forward(call, "forward", options)
        if block is not None:
            self._touch_block_forward(block)
        self._compute(
            OperationKind.FORWARD,
            entry.path,
            self._durations.forward_ns(name),
            self._durations.forward_kernels(name),
            host_waits=_host_waits(kind),
        )
        if kind.role not in (CallRole.GLUE, CallRole.LOSS):
            self._offloads.release(after=call)
        if block is None:
            self._keep(call, name, f"after forward of {entry.path}", options)
            if _is_offloaded(options):
                self._offloads.out(call, self._own_kept(name, KEEP), self._innermost)
        elif call == block.last:
            kept = self._own_kept(block.kind, RECOMPUTE)
            moment = f"after forward of {block.path}"
            self._emitter.allocate(f"B{block.first}", Stream.COMPUTE, _ACTIVATIONS, kept, moment)
            for part in range(block.first, block.last + 1):
                self._shared.keep(part, moment)
        self.in_flight.launch(call, self._sizes(call, "after_forward"), f"after forward of {entry.path}")

    def let_go(self, call: int) -> None:
        """Before a call, what the code around it held up to one before."""
        self._shared.let_go(call)
        self._offloads.let_go(call)

    def held_at_return(self, call: int) -> Sizes:
        """Bytes alive, beyond what is handed to the next call, while post-forwards at the end of a call run."""
        sizes = tuple(self._sizes(call, "at_return"))
        return sizes if len({size for size, _ in sizes}) > 1 else ((sizes[0][0], ALWAYS),)

    def _sizes(self, call: int, which: str) -> Iterator[tuple[int, Condition]]:
        """Bytes of a field of the call's liveness, under each policy that it may have."""
        for activation, when in self._options(call):
            yield self._bytes(self._model.calls[call].kind, activation, which), when

    def _find_bytes(self, name: str, activation: Activation, which: str) -> int:
        liveness = liveness_of(self._model.kinds[name], activation)
        field: Polynomial | tuple[Polynomial, ...] = getattr(liveness, which)
        sizes = field if isinstance(field, tuple) else (field,)
        return max((size.at(self._inputs.micro_batch, self._inputs.sequence) for size in sizes), default=0)

    def _touch_forward(
        self, call: int, what: str, options: list[tuple[Activation, Condition]], counted: int = 0
    ) -> None:
        """The worst moment of a forward, of which `counted` bytes are a buffer already."""
        entry = self._model.calls[call]
        for activation, when in options:
            worst = self._worst_forward(entry.kind, activation)
            if worst is not None:
                parts = _split(self._kept_bytes(call, entry.kind, activation), worst.live - counted)
                self._emitter.touch(parts, f"{what} of {entry.path}, point {worst.index}", when)

    def _touch_block_forward(self, block: ExpandedBlock) -> None:
        worst = self._worst_forward(block.kind, RECOMPUTE)
        if worst is not None:
            moment = f"forward of {block.path}, point {worst.index}"
            self._emitter.touch(_split(self._own_kept(block.kind, RECOMPUTE), worst.live), moment)

    def _keep(self, call: int, name: str, moment: str, options: list[tuple[Activation, Condition]]) -> None:
        for activation, when in options:
            kept = self._own_kept(name, activation)
            self._emitter.allocate(f"K{call}", Stream.COMPUTE, _ACTIVATIONS, kept, moment, when)
        self._shared.keep(call, moment)

    def _options(self, call: int) -> Iterator[tuple[Activation, Condition]]:
        choice = self._knobs.activation.get(call)
        if choice is None:
            yield KEEP, ALWAYS
        else:
            yield from choice

    def _kept_bytes(self, call: int, name: str, activation: Activation) -> int:
        return self._own_kept(name, activation) + self._shared.first_kept_bytes(call)

    def _find_own_kept(self, name: str, activation: Activation) -> int:
        liveness = liveness_of(self._model.kinds[name], activation)
        return liveness.kept_bytes(self._inputs.micro_batch, self._inputs.sequence)

    def _find_worst_forward(self, name: str, activation: Activation) -> _Worst | None:
        moments = liveness_of(self._model.kinds[name], activation).forward
        return _worst([(self._live(moment), 0) for moment in moments])

    def _live(self, moment: Moment) -> int:
        return moment.live_bytes.at(self._inputs.micro_batch, self._inputs.sequence)

    # Recomputation of a block with units inside

    def begin_recomputation(self, block: ExpandedBlock) -> None:
        """What the block saved is kept by its parts from now on.

        Inputs of the block that its parts do not save are held by the checkpoint to the end of its backward.
        """
        self._shared.begin_recomputation(block.first)
        self.drop_kept(block)
        moment = f"recomputation of {block.path}"
        self._emitter.allocate(f"I{block.first}", Stream.COMPUTE, _ACTIVATIONS, self._held_bytes(block), moment)

    def _held_bytes(self, block: ExpandedBlock) -> int:
        saved = sum(
            tensor.size_bytes.at(self._inputs.micro_batch, self._inputs.sequence)
            for tensor in self._model.kinds[block.kind].none.saved
            if tensor.from_input
        )
        return max(0, self._own_kept(block.kind, RECOMPUTE) - saved)

    def drop_kept(self, block: ExpandedBlock) -> None:
        """Let go of what the forward of the block kept."""
        self._emitter.free(f"B{block.first}")

    def end_backward(self, block: ExpandedBlock) -> None:
        """The checkpoint lets go of the block's inputs."""
        self._emitter.free(f"I{block.first}")
        self._shared.end_backward()

    def recompute_part(self, call: int, block: ExpandedBlock, *, stops: bool) -> None:
        """Run a part of a checkpointed block again; the recomputation `stops` once all that is needed is there.

        What is alive in the forward of a part contains the inputs of the block.
        """
        entry = self._model.calls[call]
        name, kind = entry.kind, self.kind(call)
        options = list(self._options(call))
        held = self._held_bytes(block)
        counted = held + self._shared.held_bytes(first=call == block.first)
        self._in_recomputation.land()
        self._touch_forward(call, "recomputation", options, counted)
        durations = self._durations
        self._compute(
            OperationKind.RECOMPUTE,
            entry.path,
            durations.recompute_ns(name) if stops else durations.forward_ns(name),
            durations.recompute_kernels(name) if stops else durations.forward_kernels(name),
            host_waits=_host_waits(kind),
        )
        moment = f"after recomputation of {entry.path}"
        self._keep(call, name, moment, options)
        if not stops:
            sizes = self._sizes(call, "after_forward")
            held += self._shared.held_bytes(first=False)
            self._in_recomputation.launch(call, ((max(0, size - held), when) for size, when in sizes), moment)

    def end_forward(self) -> None:
        """Before the post-forward of the root."""
        self._offloads.release()

    # Backward

    def backward(self, call: int) -> None:
        """Recomputation (where the call itself is checkpointed) and backward of a call."""
        entry = self._model.calls[call]
        kind = self.kind(call)
        options = list(self._options(call))
        self.in_flight.land()
        if _is_offloaded(options):
            self._offloads.wait_for(call, self._innermost)
        self._emitter.free(f"K{call}")
        self._shared.free(call)
        if not kind.output_requires_grad:
            return
        for activation, when in options:
            self._touch_backward(call, activation, when)
            if activation.policy in (ActivationPolicy.FULL, ActivationPolicy.SELECTIVE):
                self._compute(
                    OperationKind.RECOMPUTE,
                    entry.path,
                    self._durations.recompute_ns(entry.kind, activation.saved_ops),
                    self._durations.recompute_kernels(entry.kind, activation.saved_ops),
                    when=when,
                    host_waits=_host_waits(kind),
                )
        gradients = sum(self._inputs.gradients[call])
        unit = self._partition.unit_of_call[call]
        duration = self._durations.backward_ns(entry.kind)
        added = self._delivered.get(call, 0)
        if added and self._reductions.adds_in_place(unit):
            duration += self._durations.copy_ns(2 * added, added)
        self._compute(OperationKind.BACKWARD, entry.path, duration, self._durations.backward_kernels(entry.kind))
        moment = f"after backward of {entry.path}"
        self.in_flight.launch(call, self._sizes(call, "after_backward"), moment)
        self.in_flight.hold(call, self._sizes(call, "before_sums"), moment)
        if not self._reductions.adds_in_place(unit):
            self._reductions.made(unit, call, gradients, moment)
            return
        for delivery, size in self._undelivered(call):
            self._unfinished.setdefault(delivery, []).append(f"T{call}.{delivery}")
            self._emitter.allocate(f"T{call}.{delivery}", Stream.COMPUTE, _GRADIENTS, size, moment)
        for name in self._unfinished.pop(call, ()):
            self._emitter.free(name)

    def add_input_gradients(self, call: int) -> None:
        """Once units are done with a call, autograd adds its inputs' gradients to what other calls gave these."""
        if self.kind(call).output_requires_grad:
            moment = f"sums of input gradients of {self._model.calls[call].path}"
            self.in_flight.add(self._sizes(call, "in_sums"), moment)

    def _undelivered(self, call: int) -> Iterator[tuple[int, int]]:
        """Gradients that further uses of a parameter add to, by the call that delivers them."""
        sizes: dict[int, int] = {}
        for size, delivery in zip(self._inputs.gradients[call], self._inputs.deliveries[call], strict=False):
            if delivery != call:
                sizes[delivery] = sizes.get(delivery, 0) + size
        yield from sizes.items()

    def _touch_backward(self, call: int, activation: Activation, when: Condition) -> None:
        entry = self._model.calls[call]
        in_place = self._reductions.adds_in_place(self._partition.unit_of_call[call])
        stays = tuple(not in_place or delivery != call for delivery in self._inputs.deliveries[call])
        worst = self._worst_backward(entry.kind, activation, self._inputs.gradients[call], stays)
        if worst is not None:
            kept = self._kept_bytes(call, entry.kind, activation)
            parts = (*_split(kept, worst.live), (_GRADIENTS, worst.gradients))
            self._emitter.touch(parts, f"backward of {entry.path}, point {worst.index}", when)

    def _find_worst_backward(
        self, name: str, activation: Activation, gradients: tuple[int, ...], stays: tuple[bool, ...]
    ) -> _Worst | None:
        """A gradient that does not stay has been added to one that is there already; in the making it is live."""
        points = []
        for moment in liveness_of(self._model.kinds[name], activation).backward:
            made = list(zip(gradients, stays, strict=False))[: moment.num_gradients]
            points.append((self._live(moment), sum(size for size, stay in made if stay)))
        return _worst(points)

    @property
    def _innermost(self) -> int:
        """Unit whose pass runs."""
        return self.passes[-1] if self.passes else ROOT

    def _compute(
        self,
        kind: OperationKind,
        owner: str,
        duration_ns: int,
        launches: int,
        when: Condition = ALWAYS,
        *,
        host_waits: bool = False,
    ) -> None:
        if duration_ns or launches:
            self._emitter.operation(
                kind,
                self._innermost,
                Stream.COMPUTE,
                duration_ns,
                owner=owner,
                phase=_PHASES[kind],
                launches=launches,
                host_waits=host_waits,
                when=when,
            )


_PHASES = {
    OperationKind.FORWARD: Phase.FORWARD,
    OperationKind.RECOMPUTE: Phase.RECOMPUTE,
    OperationKind.BACKWARD: Phase.BACKWARD,
}


def liveness_of(kind: CallKind, activation: Activation) -> Liveness:
    """What a call keeps and needs; the activation must be one that the kind was traced with."""
    match activation.policy:
        case ActivationPolicy.NONE | ActivationPolicy.OFFLOAD:
            return kind.none
        case ActivationPolicy.FULL:
            return kind.full or kind.none
        case ActivationPolicy.SELECTIVE:
            found = next(entry for entry in kind.selective if entry.saved_ops == activation.saved_ops)
            return found.liveness


def _worst(points: list[tuple[int, int]]) -> _Worst | None:
    """Of (live, gradients) the first with the largest sum: nothing else changes within a call."""
    if not points:
        return None
    index = max(range(len(points)), key=lambda i: (sum(points[i]), -i))
    return _Worst(index, *points[index])


def _split(kept: int, live: int) -> Parts:
    """Live bytes of a call as what it keeps and what is gone afterwards."""
    return (_ACTIVATIONS, max(0, min(kept, live))), (_TRANSIENTS, max(0, live - kept))


def _is_offloaded(options: Iterable[tuple[Activation, Condition]]) -> bool:
    policies = [activation.policy for activation, _ in options]
    assert policies == [ActivationPolicy.OFFLOAD] or ActivationPolicy.OFFLOAD not in policies, "no open knob"
    return ActivationPolicy.OFFLOAD in policies


def _host_waits(kind: CallKind) -> bool:
    return any(region.host_sync for region in kind.regions)
