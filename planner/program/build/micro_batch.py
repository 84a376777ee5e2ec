"""The walk through one micro-batch: forward, backward, final callback."""

from collections import defaultdict

from planner.program.build.calls import Calls
from planner.program.build.emitter import Emitter
from planner.program.build.gathers import Gathers
from planner.program.build.reductions import Reductions
from planner.program.events import Phase, Program, Stream
from planner.program.parts import ExpandedBlock
from planner.program.step import Durations, Knobs, StepInputs
from planner.program.units import ROOT, Pass
from planner.schema import MemoryCategory


def build_program(inputs: StepInputs, knobs: Knobs, durations: Durations) -> Program:
    """Program of one micro-batch and of the optimizer step's allocations."""
    walk = _Walk(inputs, knobs, durations)
    walk.allocate_persistent()
    walk.forward()
    walk.backward()
    walk.final_callback()
    if knobs.micro_batch.is_last:
        walk.optimizer_step()
    return Program(events=tuple(walk.emitter.events), launch_ns=durations.launch_ns)


class _Walk:
    def __init__(self, inputs: StepInputs, knobs: Knobs, durations: Durations) -> None:
        self.inputs = inputs
        self.knobs = knobs
        self.partition = inputs.partition
        self.model = inputs.partition.model
        self.durations = durations
        self.emitter = Emitter(inputs.partition, durations.host_runs)
        self.gathers = Gathers(inputs, knobs, durations, self.emitter)
        self.reductions = Reductions(inputs, knobs, durations, self.emitter)
        self.calls = Calls(inputs, knobs, durations, self.emitter, self.reductions)
        self.output_cast = self.partition.output_cast
        self.loss = self.partition.loss_call
        self.main = [call for call in range(len(self.model.calls)) if call not in (self.output_cast, self.loss)]
        """Calls inside the root module."""
        self.order: list[int] = []
        """Units in the order of their post-forward hooks, with multiplicity."""
        self.places: dict[int, list[int]] = defaultdict(list)
        """Places of each unit in that order that no backward has used yet."""
        self.delivered: set[int] = set()
        """Units whose gradients autograd has delivered."""
        self.in_backward: set[int] = set()
        self.recomputing_root: int | None = None
        """Unit inside a recomputed block that takes itself for the root of a forward."""
        self.starts: dict[int, list[Pass]] = defaultdict(list)
        self.ends: dict[int, list[Pass]] = defaultdict(list)
        for run in self.partition.passes:
            self.starts[run.first].append(run)
        for run in self.partition.passes_by_end:
            self.ends[run.last].append(run)

    def allocate_persistent(self) -> None:
        moment = "between steps"
        allocate, compute = self.emitter.allocate, Stream.COMPUTE
        sizes = self.inputs.sizes
        stored = sum(size.stored for unit, size in enumerate(sizes) if not self.knobs.is_on_host(unit))
        allocate("parameters", compute, MemoryCategory.PARAMETERS, stored, moment)
        allocate("optimizer", compute, MemoryCategory.OPTIMIZER, self.inputs.optimizer_bytes, moment)
        allocate("buffers", compute, MemoryCategory.BUFFERS, self.model.buffers_bytes, moment)
        inputs = self.model.inputs_bytes.at(self.inputs.micro_batch, self.inputs.sequence)
        allocate("inputs", compute, MemoryCategory.BUFFERS, inputs, moment)
        self.gathers.allocate_found()
        self.reductions.allocate_found()

    def optimizer_step(self) -> None:
        self.emitter.touch(((MemoryCategory.OPTIMIZER, self.inputs.optimizer_transient_bytes),), "optimizer step")

    # Forward

    def forward(self) -> None:
        self.gathers.enter(self.knobs.forward_prefetch)
        self.gathers.begin_root()
        self._pre_forward(ROOT)
        for call in self.main:
            self.calls.let_go(call)
            for run in self.starts[call]:
                self._pre_forward(run.unit)
            self.calls.forward(call)
            for run in self.ends[call]:
                self._post_forward(run.unit, call)
        self.calls.end_forward()
        self._post_forward(ROOT, self.main[-1])
        if self.output_cast is not None:
            self.calls.let_go(self.output_cast)
            self.calls.forward(self.output_cast)
        self.gathers.release_deferred()
        self.gathers.end_root()
        if self.loss is not None:
            self.calls.let_go(self.loss)
            self.calls.forward(self.loss)
        self.calls.let_go(len(self.model.calls))

    def _pre_forward(self, unit: int) -> None:
        self._enter_pass(unit)
        self.gathers.unshard(unit, "forward")
        self.gathers.wait_for_unshard(unit, "forward", defers=True)
        self.gathers.prefetch(unit, "forward")

    def _post_forward(self, unit: int, call: int) -> None:
        """After the last call of a pass."""
        self._leave_pass(unit)
        self.gathers.reshard_after_forward(unit, self.calls.held_at_return(call))
        if self.partition.units[unit].parameters:
            self.places[unit].append(len(self.order))
            self.order.append(unit)

    def _enter_pass(self, unit: int) -> None:
        if unit != ROOT and self.partition.units[unit].parameters:
            self.calls.passes.append(unit)

    def _leave_pass(self, unit: int) -> None:
        if unit in self.calls.passes:
            self.calls.passes.remove(unit)

    # Backward

    def backward(self) -> None:
        self.emitter.phase = Phase.BACKWARD
        self.gathers.enter(self.knobs.backward_prefetch)
        for call in (self.loss, self.output_cast):
            if call is not None:
                self.calls.backward(call)
                self.calls.add_input_gradients(call)
        for call in reversed(self.main):
            for run in self.ends[call]:
                if self.partition.has_backward(run):
                    self._pre_backward(run.unit)
            if call == self.main[-1]:
                self._pre_backward(ROOT)
            self._recompute_before(call)
            self.calls.backward(call)
            block = self.calls.checkpointed_block(call)
            if block is not None and call == block.first:
                self.calls.end_backward(block)
            for run in reversed(self.starts[call]):
                if self._reduces_in_backward(run):
                    self._post_backward(run)
            self.calls.add_input_gradients(call)

    def _reduces_in_backward(self, run: Pass) -> bool:
        return self.calls.kind(run.first).input_requires_grad and self.partition.has_backward(run)

    def _pre_backward(self, unit: int) -> None:
        self._enter_pass(unit)
        self.in_backward.add(unit)
        self.gathers.unshard(unit, "backward")
        self.gathers.wait_for_unshard(unit, "backward", defers=False)
        place = self.places[unit].pop() if self.places[unit] else 0
        self.gathers.prefetch(unit, "backward", default=self.order[place - 1] if place else None)

    def _recompute_before(self, call: int) -> None:
        """A checkpointed block runs again before the first backward that needs what it makes."""
        block = self.calls.checkpointed_block(call)
        if block is None:
            return
        parts = [p for p in range(block.first, block.last + 1) if self.calls.kind(p).output_requires_grad]
        saving = [part for part in parts if self.calls.kind(part).none.saved]
        stop = max(saving or parts, default=None)
        if call == stop:
            self._recompute(block, stop)
        elif stop is None and call == block.first:
            self.calls.drop_kept(block)

    def _recompute(self, block: ExpandedBlock, stop: int) -> None:
        """Parts up to the last that has something to recompute; units inside run their forward hooks again."""
        self.calls.begin_recomputation(block)
        for call in range(block.first, stop + 1):
            for run in self.starts[call]:
                if run.last <= block.last:
                    self._pre_forward_again(run.unit)
            self.calls.recompute_part(call, block, stops=call == stop)
            for run in self.ends[call]:
                if block.first <= run.first:
                    self._post_forward_again(run.unit)

    def _pre_forward_again(self, unit: int) -> None:
        """A forward hook amid backward: the unit takes itself for the root of a new forward, unless one runs."""
        if unit in self.in_backward:
            return
        self._enter_pass(unit)
        if self.recomputing_root is None:
            self.recomputing_root = unit
            self.gathers.wait_for_compute()
        self.gathers.unshard(unit, "recomputation")
        self.gathers.wait_for_unshard(unit, "recomputation", defers=True)
        for targets, _ in self.knobs.forward_prefetch:
            for target in targets[unit] if targets else ():
                self.gathers.unshard(target, "recomputation")

    def _post_forward_again(self, unit: int) -> None:
        if unit in self.in_backward:
            return
        self._leave_pass(unit)
        if self.recomputing_root == unit:
            self.gathers.release_deferred()
            self.recomputing_root = None

    def _post_backward(self, run: Pass) -> None:
        """A unit that runs several times gets the sum of its gradients in the post-backward of its first pass."""
        if self.partition.units[run.unit].parameters:
            first = next(first for first in self.partition.passes if first.unit == run.unit)
            self._run_post_backward(run.unit, delivers=run is first)

    def _run_post_backward(self, unit: int, *, delivers: bool) -> None:
        self.in_backward.discard(unit)
        self._leave_pass(unit)
        if delivers:
            self.delivered.add(unit)
            self.reductions.accumulate_whole(unit)
        if not self.knobs.reduces:
            self.gathers.reshard_after_backward(unit)
            if delivers:
                self.reductions.keep_whole(unit)
            return
        if delivers:
            self.reductions.add_zeros(unit)
        self.gathers.reshard_after_backward(unit)
        self.reductions.recycle()
        if delivers:
            self.reductions.reduce(unit)

    def final_callback(self) -> None:
        for unit, entry in enumerate(self.partition.units):
            if not entry.parameters:
                continue
            if unit not in self.delivered or unit in self.in_backward:
                self._run_post_backward(unit, delivers=unit not in self.delivered)
            self.reductions.finalize(unit)
            self.gathers.drop_unused(unit)
        self.reductions.release_all()
        self.calls.in_flight.land()
