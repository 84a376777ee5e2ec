"""One micro-batch: forward, backward and final callback, in issue order."""

from collections.abc import Mapping, Sequence

from planner.check.calls import Calls, CheckpointedBlock, LentTensor
from planner.check.comm import CommContext
from planner.check.costs import StepCosts
from planner.check.gradients import Contribution
from planner.check.group import Group
from planner.check.hooks import UnitHooks
from planner.check.machine import Machine, Stream
from planner.check.parts import is_inside
from planner.check.passes import Pass
from planner.check.units import ShardedParameter, Unit, in_enter_order, in_leave_order
from planner.schema.model import CallRole
from planner.schema.plan import MemoryCategory
from planner.schema.polynomial import Polynomial

_ACTIVATIONS = MemoryCategory.ACTIVATIONS


class Walk:
    """Walks over the calls of a model; what one walk leaves behind is there for the next."""

    def __init__(self, calls: Calls, units: tuple[Unit, ...], comm: CommContext, costs: StepCosts) -> None:
        self.calls = calls
        self.units = units
        self.comm = comm
        self.costs = costs
        self.machine: Machine = comm.machine
        self.groups: Mapping[str, Group] = {unit.name: Group(unit, comm) for unit in units if unit.parameters}
        self._hooks = {unit.name: UnitHooks(unit, self.groups, comm) for unit in units}
        self._root = next(hooks for hooks in self._hooks.values() if hooks.unit.is_root)
        self._entering: dict[int, list[tuple[UnitHooks, Pass]]] = {}
        for unit, run in in_enter_order(units):
            self._entering.setdefault(run.first_call, []).append((self._hooks[unit.name], run))
        self._leaving: dict[int, list[tuple[UnitHooks, Pass]]] = {}
        for unit, run in in_leave_order(units):
            self._leaving.setdefault(run.last_call, []).append((self._hooks[unit.name], run))
        self._owners: dict[str, tuple[Group, ShardedParameter]] = {
            parameter.name: (self.groups[unit.name], parameter) for unit in units for parameter in unit.parameters
        }
        self._kept: dict[int, int] = {}
        """Bytes that each call keeps now."""
        self._sending: tuple[int, int] | None = None
        """Offloaded call whose copies have been issued, and when they end."""
        self._away: list[int] = []
        self._fetched: dict[int, int] = {}
        self._flying_bytes = 0
        self._handed_bytes = 0
        """What a part that was recomputed hands to the next one."""
        self._unsummed_bytes = 0
        self._blocks_kept: dict[int, int] = {}
        """Bytes that each checkpointed block keeps now, by its first part."""
        self._blocks_held: dict[int, int] = {}
        self._lent: list[LentTensor] = []

    def walk(self, *, is_last: bool, times: int = 1) -> int:
        """Run a micro-batch from idle clocks on, for so many like it; the time of one in nanoseconds."""
        self.comm.begin_micro_batch(is_last=is_last, times=times)
        for group in self.groups.values():
            group.begin_micro_batch()
        self.forward()
        self.backward()
        self.final_callback()
        self._land()
        return self.machine.end_ns

    def forward(self) -> None:
        """Forward of the model, then the loss."""
        self.comm.in_place.is_in_forward = True
        self._root.pre_forward()
        for index in self.calls.main:
            self.end_loans(index)
            for hooks, _ in self._entering.get(index, ()):
                hooks.pre_forward()
            self.run_forward(index)
            for hooks, _ in self._leaving.get(index, ()):
                hooks.post_forward(self._held_at_return(index))
        self._let_go_of_offloaded()
        self._root.post_forward(self._held_at_return(self.calls.main[-1]), self._cast_output)
        self.comm.in_place.end_forward()
        for index in self.calls.loss:
            self.end_loans(index)
            self.run_forward(index)
        self.end_loans(len(self.calls.planned))

    def _cast_output(self) -> None:
        for index in self.calls.output_cast:
            self.end_loans(index)
            self.run_forward(index)

    def run_forward(self, index: int) -> None:
        """Forward of one call; the parts of a checkpointed block keep nothing each."""
        self._land()
        name, block = self.calls.kind_name(index), self.calls.blocks.get(index)
        for moment in block.forward if block else ():
            self.machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: self.calls.at(moment.live_bytes)})
        self._run_call(index, self.costs.forward_ns(name), self.costs.forward_kernels(name))
        if self.calls.kind(index).role not in (CallRole.GLUE, CallRole.LOSS):
            self._let_go_of_offloaded(index)
        if block is None:
            self._keep(index)
            self._send(index)
        elif index == block.last:
            self._blocks_kept[block.first] = block.kept_bytes + block.shared_bytes
            self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, self._blocks_kept[block.first])
        for lent in self.calls.lent:
            if lent.first_call == index:
                self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, lent.size_bytes)
                self._lent.append(lent)
        self._launch(self.calls.liveness(index).after_forward)

    def end_loans(self, index: int) -> None:
        """Before a call: the code around the calls lets go of what it held up to one before."""
        for lent in [lent for lent in self._lent if lent.last_call < index]:
            self.machine.free(Stream.COMPUTE, _ACTIVATIONS, lent.size_bytes)
            self._lent.remove(lent)

    def _held_at_return(self, index: int) -> int:
        return self.calls.at(self.calls.liveness(index).at_return)

    def _launch(self, size_bytes: Polynomial) -> None:
        """What one call hands to the next is alive in between."""
        self._flying_bytes = self.calls.at(size_bytes)
        self.machine.allocate(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._flying_bytes)

    def _land(self) -> None:
        """The moments of a call count what is handed to it."""
        self.machine.free(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._flying_bytes)
        self._flying_bytes = 0

    def _run_call(self, index: int, duration_ns: int, kernels: int, counted_bytes: int = 0) -> None:
        for moment in self.calls.liveness(index).forward:
            live_bytes = self.calls.at(moment.live_bytes) - counted_bytes
            self.machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: max(0, live_bytes)})
        self._compute(duration_ns, kernels, host_waits=self.calls.host_waits(index))

    def _keep(self, index: int, but_bytes: int = 0) -> None:
        self._kept[index] = self.calls.kept_bytes(index) - but_bytes
        self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, self._kept[index])

    def _send(self, index: int) -> None:
        """Copy what an offloaded call has kept, shared tensors apart, to the host."""
        size_bytes = self.calls.offloaded_bytes(index)
        if size_bytes:
            self.machine.wait_stream(Stream.OFFLOAD, Stream.COMPUTE)
            end_ns = self.machine.run(Stream.OFFLOAD, self.costs.device_to_host_ns(size_bytes))
            self._sending = (index, end_ns)
            self._away.append(index)
            self.machine.allocate_host(size_bytes)

    def _let_go_of_offloaded(self, after: int | None = None) -> None:
        """After the next module, or where the root ends, the device lets go of what went to the host.

        What the code around the calls still holds stays until it lets go too.
        """
        if self._sending is not None:
            index, end_ns = self._sending
            self.machine.wait(Stream.COMPUTE, end_ns)
            size_bytes = self.calls.offloaded_bytes(index)
            self.machine.free(Stream.COMPUTE, _ACTIVATIONS, size_bytes)
            self._kept[index] -= size_bytes
            self._sending = None
            for lent in self.calls.lent_inputs:
                if lent.first_call == index and after is not None and after <= lent.last_call:
                    self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, lent.size_bytes)
                    self._lent.append(lent)

    def _fetch_for(self, index: int) -> None:
        """Bring back what the backward of a call needs, and begin with the offloaded call before it."""
        if not self.calls.offloaded_bytes(index):
            return
        if index in self._away:
            self._fetch()
        self.machine.wait(Stream.COMPUTE, self._fetched.pop(index))
        if self._away:
            self._fetch()

    def _fetch(self) -> None:
        index = self._away.pop()
        size_bytes = self.calls.offloaded_bytes(index)
        self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, size_bytes)
        self._kept[index] += size_bytes
        self.machine.wait_stream(Stream.OFFLOAD, Stream.COMPUTE)
        self._fetched[index] = self.machine.run(Stream.OFFLOAD, self.costs.host_to_device_ns(size_bytes))
        self.machine.free_host(size_bytes)

    def backward(self) -> None:
        """Backward up to the final callback."""
        self.comm.is_in_backward = True
        for index in (*self.calls.loss, *self.calls.output_cast):
            self.run_backward(index)
            self._add_input_gradients(index)
        for index in reversed(self.calls.main):
            kind = self.calls.kind(index)
            if kind.output_requires_grad:
                for hooks in self._hooked_on_output(index):
                    hooks.pre_backward()
            self._recompute_block(index)
            self.run_backward(index)
            for hooks, _ in reversed(self._entering.get(index, ())):
                if kind.input_requires_grad and kind.output_requires_grad:
                    hooks.post_backward()
            self._add_input_gradients(index)

    def _hooked_on_output(self, index: int) -> list[UnitHooks]:
        """Units whose pre-backward hooks wait for the gradient of what the call returns, as they fire.

        Hooks of one tensor fire as they were registered: inner units first, the root last, whose hook is on what
        it returns before the cast to `output_dtype`.
        """
        hooked = [hooks for hooks, _ in self._leaving.get(index, ())]
        return [*hooked, self._root] if index == self.calls.main[-1] else hooked

    def _recompute_block(self, index: int) -> None:
        """Let a checkpointed block make its activations again, before the first backward that needs them."""
        block = self.calls.blocks.get(index)
        if block is None or block.first not in self._blocks_kept:
            return
        if index == block.recomputed_to:
            self._drop_kept_of(block)
            self.machine.allocate(Stream.COMPUTE, _ACTIVATIONS, block.held_bytes)
            self._blocks_held[block.first] = block.held_bytes
            for part in range(block.first, index + 1):
                self._recompute_part(part, block)
        elif index == block.first:
            self._drop_kept_of(block)

    def _drop_kept_of(self, block: CheckpointedBlock) -> None:
        self.machine.free(Stream.COMPUTE, _ACTIVATIONS, self._blocks_kept.pop(block.first))

    def _recompute_part(self, index: int, block: CheckpointedBlock) -> None:
        """Early stop cuts the last part short; hooks behind it would do nothing, its pre-backward being over.

        What is alive in the forward of a part, and after it, has the inputs that the checkpoint holds among it.
        """
        name, is_last = self.calls.kind_name(index), index == block.recomputed_to
        counted_bytes = block.held_bytes - block.held_by_caller_bytes
        for hooks, run in self._entering.get(index, ()):
            if is_inside(run.entered.module, block.path):
                hooks.pre_forward()
        self.machine.free(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._handed_bytes)
        self._run_call(
            index,
            self.costs.recompute_ns(name) if is_last else self.costs.forward_ns(name),
            self.costs.recompute_kernels(name) if is_last else self.costs.forward_kernels(name),
            counted_bytes=block.held_bytes if index == block.first else counted_bytes,
        )
        self._keep(index, but_bytes=block.shared_inputs_bytes if index == block.first else 0)
        after = self.calls.at(self.calls.liveness(index).after_forward) - counted_bytes
        self._handed_bytes = 0 if is_last else max(0, after)
        self.machine.allocate(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._handed_bytes)
        for hooks, run in self._leaving.get(index, ()):
            if is_inside(run.left.module, block.path):
                hooks.post_forward()

    def run_backward(self, index: int) -> None:
        """Backward of one call, after its recomputation when it is checkpointed."""
        calls, machine, name = self.calls, self.machine, self.calls.kind_name(index)
        self._land()
        self._fetch_for(index)
        machine.free(Stream.COMPUTE, _ACTIVATIONS, self._kept.pop(index, 0))
        if not calls.kind(index).output_requires_grad:
            return
        gradients = calls.gradients(index)
        for moment in calls.liveness(index).backward:
            made = self._contributions(index, gradients[: moment.num_gradients])
            sizes = {
                MemoryCategory.TRANSIENTS: calls.at(moment.live_bytes),
                MemoryCategory.UNSHARDED_GRADIENTS: sum(
                    group.gradients.bytes_while_made(items) for group, items in made.items()
                ),
            }
            machine.touch(Stream.COMPUTE, sizes)
        if calls.policy(index):
            saved_ops = calls.saved_ops(index)
            self._compute(
                self.costs.recompute_ns(name, saved_ops),
                self.costs.recompute_kernels(name, saved_ops),
                host_waits=calls.host_waits(index),
            )
        made = self._contributions(index, gradients)
        self._launch(calls.liveness(index).after_backward)
        self._unsummed_bytes = calls.at(calls.liveness(index).before_sums)
        machine.allocate(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._unsummed_bytes)
        added_bytes = sum(group.gradients.added_bytes(items) for group, items in made.items())
        adding_ns = self.costs.copy_ns(2 * added_bytes, added_bytes) if added_bytes else 0
        self._compute(self.costs.backward_ns(name) + adding_ns, self.costs.backward_kernels(name))
        for group, items in made.items():
            for item in items:
                group.gradients.make(item)
        machine.free(Stream.COMPUTE, _ACTIVATIONS, self._blocks_held.pop(index, 0))

    def _add_input_gradients(self, index: int) -> None:
        """After the post-backwards at a call: sums of gradients that several calls give one tensor."""
        self.machine.free(Stream.COMPUTE, MemoryCategory.TRANSIENTS, self._unsummed_bytes)
        self._unsummed_bytes = 0
        if self.calls.kind(index).output_requires_grad:
            for size_bytes in self.calls.liveness(index).in_sums:
                self.machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: self.calls.at(size_bytes)})

    def _contributions(self, index: int, names: Sequence[str | None]) -> dict[Group, list[Contribution]]:
        """Gradients that a call makes, each storage once, by group."""
        found: dict[Group, list[Contribution]] = {}
        for name in dict.fromkeys(names):
            if name is not None:
                group, parameter = self._owners[name]
                item = Contribution(parameter=parameter, completes=self.calls.completes(index, name))
                found.setdefault(group, []).append(item)
        return found

    def final_callback(self) -> None:
        """What FSDP2 does when autograd is done: the root first, then the units as registered."""
        for unit in sorted(self.units, key=lambda unit: unit.registration):
            self._hooks[unit.name].finish_backward()
        self.comm.release_reduce_inputs(but=0)
        self.comm.post_forward_order.clear()

    def _compute(self, duration_ns: int, kernels: int, *, host_waits: bool = False) -> None:
        if duration_ns or kernels:
            end_ns = self.machine.run(Stream.COMPUTE, duration_ns, kernels)
            if host_waits:
                self.machine.host_waits(end_ns)
