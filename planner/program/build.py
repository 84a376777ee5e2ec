"""Build the program of one micro-batch by walking through FSDP2's hooks (docs/model.md, "One micro-batch").

Knobs may be fixed (the program of a plan) or open (one program for a whole search: events carry the condition under
which they happen). The methods are named after FSDP2's own.
"""

from dataclasses import dataclass, field

from planner.program.choices import ALWAYS, Condition, both
from planner.program.events import (
    Allocate,
    Event,
    Free,
    Link,
    Operation,
    OperationKind,
    Phase,
    Program,
    Stream,
    Touch,
    Wait,
)
from planner.program.step import Durations, Knobs, PrefetchTargets, StepInputs
from planner.program.units import ROOT, Pass, UnitBytes
from planner.schema import ActivationPolicy, CallKind, Liveness, MemoryCategory

_PHASES = {
    OperationKind.FORWARD: Phase.FORWARD,
    OperationKind.RECOMPUTE: Phase.RECOMPUTE,
    OperationKind.BACKWARD: Phase.BACKWARD,
}


@dataclass(slots=True)
class _Scenario:
    """One alternative of a prefetch knob, and the units whose gather it has issued."""

    targets: PrefetchTargets
    condition: Condition
    issued: set[int] = field(default_factory=set)


def build_program(inputs: StepInputs, knobs: Knobs, durations: Durations) -> Program:
    """Program of one micro-batch and of the optimizer step's allocations."""
    return _Builder(inputs, knobs, durations).build()


class _Builder:
    def __init__(self, inputs: StepInputs, knobs: Knobs, durations: Durations) -> None:
        self.inputs = inputs
        self.knobs = knobs
        self.durations = durations
        self.partition = inputs.partition
        self.model = inputs.partition.model
        self.events: list[Event] = []
        self.gathers: dict[int, list[int]] = {}
        self.copy_outs: dict[int, int] = {}
        self.deferred: int | None = None
        self.retained: list[tuple[int, int]] = []
        self.outstanding: dict[Stream, int] = {}
        self.held: dict[int, str] = {}
        self.reduced: set[int] = set()
        self.num_gathers = 0
        self.phase = Phase.FORWARD
        self.passes: list[int] = []
        """Units whose pass has begun and not ended, the innermost last; the root's is not counted."""

    def build(self) -> Program:
        self._allocate_persistent()
        self._forward()
        self._backward()
        self._final_callback()
        transient = ((MemoryCategory.OPTIMIZER, self.inputs.optimizer_transient_bytes),)
        self.events.append(Touch(parts=transient, moment="optimizer step"))
        return Program(events=tuple(self.events), launch_ns=self.durations.launch_ns, num_gathers=self.num_gathers)

    # Emission

    def _operation(self, operation: Operation) -> int:
        self.events.append(operation)
        return len(self.events) - 1

    def _wait(self, stream: Stream, operation: int, when: Condition = ALWAYS) -> None:
        self.events.append(Wait(stream=stream, operation=operation, when=when))

    def _allocate(
        self,
        buffer: str,
        stream: Stream,
        category: MemoryCategory,
        size_bytes: int,
        moment: str,
        when: Condition = ALWAYS,
    ) -> None:
        if size_bytes:
            self.events.append(
                Allocate(
                    buffer=buffer,
                    stream=stream,
                    category=category,
                    size_bytes=size_bytes,
                    moment=moment,
                    when=when,
                )
            )

    def _free(self, buffer: str, when: Condition = ALWAYS) -> None:
        self.events.append(Free(buffer=buffer, when=when))

    def _allocate_persistent(self) -> None:
        stored = sum(size.stored for size in self.inputs.sizes)
        moment = "between steps"
        compute = Stream.COMPUTE
        self._allocate("parameters", compute, MemoryCategory.PARAMETERS, stored, moment)
        self._allocate("optimizer", compute, MemoryCategory.OPTIMIZER, self.inputs.optimizer_bytes, moment)
        self._allocate("buffers", compute, MemoryCategory.BUFFERS, self.model.buffers_bytes, moment)
        inputs = self.model.inputs_bytes.at(self.inputs.micro_batch, self.inputs.sequence)
        self._allocate("inputs", compute, MemoryCategory.BUFFERS, inputs, moment)
        if self.knobs.accumulates:
            for unit, size in enumerate(self.inputs.sizes):
                pool = self._gradient_pool(size)
                self._allocate(f"D{unit}", pool, MemoryCategory.GRADIENTS, size.sharded_gradients, moment)

    def _gradient_pool(self, size: UnitBytes) -> Stream:
        return Stream.ALL_REDUCE if self.knobs.replicate > 1 and size.casts else Stream.REDUCE

    # Forward

    def _forward(self) -> None:
        self.scenarios = [_Scenario(targets, when) for targets, when in self.knobs.forward_prefetch]
        self._pre_forward(ROOT)
        starts = {run.first: run for run in self.partition.passes}
        ends = {run.last: run for run in self.partition.passes}
        loss = self.partition.loss_call
        for call in range(len(self.model.calls)):
            if call == loss:
                continue
            if call in starts:
                self._pre_forward(starts[call].unit)
            self._run_forward(call)
            if call in ends:
                self._reshard_after_forward(ends[call].unit)
        self._reshard_after_forward(ROOT)
        self._free_deferred()
        if loss is not None:
            self._run_forward(loss)

    def _pre_forward(self, unit: int) -> None:
        self._enter_pass(unit)
        self._unshard(unit, "forward")
        self._wait_for_unshard_in_forward(unit)
        self._prefetch(unit, "forward")

    def _enter_pass(self, unit: int) -> None:
        if unit != ROOT and self.partition.units[unit].parameters:
            self.passes.append(unit)

    def _leave_pass(self, unit: int) -> None:
        if unit in self.passes:
            self.passes.remove(unit)

    def _unshard(self, unit: int, phase: str, only: tuple[_Scenario, ...] | None = None) -> None:
        """Issue the gather of a unit in every scenario (or in `only`) that has not issued it yet."""
        asked = [scenario for scenario in (self.scenarios if only is None else only) if unit not in scenario.issued]
        for scenario in asked:
            scenario.issued.add(unit)
        if not asked or not self.inputs.sizes[unit].gathered:
            return
        resharded = ALWAYS if phase == "forward" else self.knobs.reshard[unit].when(True)
        if resharded is None:
            return
        if len(asked) == len(self.scenarios):
            self._gather(unit, phase, resharded)
            return
        for scenario in asked:
            self._gather(unit, phase, both(resharded, scenario.condition))

    def _gather(self, unit: int, phase: str, when: Condition) -> None:
        self.gathers.setdefault(unit, [])
        if self.knobs.shard == 1:
            return
        size = self.inputs.sizes[unit].gathered
        shard = size // self.knobs.shard
        owner = self.partition.units[unit].name
        moment = f"gather of {owner} in {phase}"
        gathers, copy_in_pool = MemoryCategory.GATHER_BUFFERS, Stream.COPY_IN
        self._allocate(f"C{unit}", copy_in_pool, gathers, self.inputs.sizes[unit].cast, moment, when)
        self._allocate(f"A{unit}", copy_in_pool, gathers, size, moment, when)
        copy_in = self._operation(
            Operation(
                kind=OperationKind.COPY_IN,
                owner=owner,
                unit=unit,
                phase=self.phase,
                stream=Stream.COPY_IN,
                duration_ns=self.durations.copy_ns(shard, shard),
                size_bytes=shard,
                when=when,
            )
        )
        self._free(f"C{unit}", when)
        gather = self._operation(
            Operation(
                kind=OperationKind.ALL_GATHER,
                owner=owner,
                unit=unit,
                phase=self.phase,
                stream=Stream.GATHER,
                link=Link.SHARD,
                duration_ns=self.durations.all_gather_ns(size),
                size_bytes=size,
                waits=(copy_in,),
                when=when,
            )
        )
        self.num_gathers += 1
        self.gathers[unit].append(gather)

    def _wait_for_unshard_in_forward(self, unit: int) -> None:
        if not self.inputs.sizes[unit].gathered:
            return
        self._free_deferred()
        self._copy_out(unit, "forward", ALWAYS)
        if self.knobs.shard > 1:
            self.deferred = unit

    def _free_deferred(self) -> None:
        if self.deferred is None:
            return
        self._release_gather(self.deferred, ALWAYS)
        self.deferred = None

    def _release_gather(self, unit: int, when: Condition) -> None:
        """AG streams follow the copy-out before the all-gather output may be used again."""
        if self.knobs.shard == 1:
            return
        self._wait(Stream.COPY_IN, self.copy_outs[unit], when)
        self._wait(Stream.GATHER, self.copy_outs[unit], when)
        self._free(f"A{unit}", when)

    def _copy_out(self, unit: int, phase: str, when: Condition) -> None:
        size = self.inputs.sizes[unit].gathered
        owner = self.partition.units[unit].name
        moment = f"copy-out of {owner} in {phase}"
        unsharded = MemoryCategory.UNSHARDED_PARAMETERS
        if self.knobs.shard == 1:
            whole, casts = self.inputs.sizes[unit].largest_casts
            parts = ((unsharded, whole), (MemoryCategory.TRANSIENTS, casts))
            self.events.append(Touch(parts=parts, moment=moment, when=when))
        self._allocate(f"U{unit}", Stream.COMPUTE, unsharded, size, moment, when)
        self.copy_outs[unit] = self._operation(
            Operation(
                kind=OperationKind.COPY_OUT,
                owner=owner,
                unit=unit,
                phase=self.phase,
                stream=Stream.COMPUTE,
                duration_ns=self.durations.copy_ns(size, size),
                size_bytes=size,
                waits=tuple(self.gathers.pop(unit, ())),
                when=when,
            )
        )

    def _prefetch(self, unit: int, phase: str) -> None:
        """Issue the gathers of each scenario's targets; what all scenarios issue here is issued once."""
        ordered = dict.fromkeys(target for s in self.scenarios if s.targets for target in s.targets[unit])
        for target in ordered:
            asking = tuple(s for s in self.scenarios if s.targets and target in s.targets[unit])
            self._unshard(target, phase, asking)

    def _reshard_after_forward(self, unit: int) -> None:
        self._leave_pass(unit)
        resharded = self.knobs.reshard[unit].when(True)
        if resharded is not None:
            self._free(f"U{unit}", resharded)

    def _run_forward(self, call: int) -> None:
        entry = self.model.calls[call]
        kind = self.model.kinds[entry.kind]
        for policy, liveness, when in self._policies(call, kind):
            kept = self._kept_bytes(call, liveness)
            for index, moment in enumerate(liveness.forward):
                live = moment.live_bytes.at(self.inputs.micro_batch, self.inputs.sequence)
                self.events.append(
                    Touch(
                        parts=_split(kept, live),
                        moment=f"forward of {entry.path}, point {index}",
                        when=when,
                    )
                )
            del policy
        self._compute(
            OperationKind.FORWARD,
            entry.path,
            self.durations.forward_ns(entry.kind),
            self.durations.forward_kernels(entry.kind),
            host_waits=_host_waits(kind),
        )
        for _, liveness, when in self._policies(call, kind):
            self._allocate(
                f"K{call}",
                Stream.COMPUTE,
                MemoryCategory.ACTIVATIONS,
                self._kept_bytes(call, liveness),
                f"after forward of {entry.path}",
                when,
            )

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
            self._operation(
                Operation(
                    kind=kind,
                    owner=owner,
                    unit=self.passes[-1] if self.passes else ROOT,
                    phase=_PHASES[kind],
                    stream=Stream.COMPUTE,
                    duration_ns=duration_ns,
                    launches=launches,
                    host_waits=host_waits,
                    when=when,
                )
            )

    def _policies(self, call: int, kind: CallKind) -> list[tuple[ActivationPolicy, Liveness, Condition]]:
        choice = self.knobs.activation.get(call)
        if choice is None or kind.full is None:
            return [(ActivationPolicy.NONE, kind.none, ALWAYS)]
        return [
            (policy, kind.full if policy is ActivationPolicy.FULL else kind.none, when) for policy, when in choice
        ]

    def _kept_bytes(self, call: int, liveness: Liveness) -> int:
        own = liveness.kept_bytes(self.inputs.micro_batch, self.inputs.sequence)
        return own + sum(
            tensor.size_bytes.at(self.inputs.micro_batch, self.inputs.sequence)
            for tensor in self.model.shared
            if tensor.first_call == call
        )

    # Backward

    def _backward(self) -> None:
        self.phase = Phase.BACKWARD
        self.scenarios = [_Scenario(targets, when) for targets, when in self.knobs.backward_prefetch]
        loss = self.partition.loss_call
        if loss is not None:
            self._run_backward(loss)
        self.order = [run.unit for run in self.partition.passes]
        starts = {run.first: run for run in self.partition.passes}
        ends = {run.last: run for run in self.partition.passes}
        calls = [call for call in range(len(self.model.calls)) if call != loss]
        for call in reversed(calls):
            hooked = [ends[call].unit] if call in ends and self._has_backward(ends[call]) else []
            if call == calls[-1]:
                hooked.append(ROOT)
            for unit in hooked:
                self._pre_backward(unit)
            self._run_backward(call)
            if call in starts and self._reduces_in_backward(starts[call]):
                self._post_backward(starts[call].unit)

    def _has_backward(self, run: Pass) -> bool:
        return self.model.kinds[self.model.calls[run.last].kind].output_requires_grad

    def _reduces_in_backward(self, run: Pass) -> bool:
        first = self.model.kinds[self.model.calls[run.first].kind]
        return first.input_requires_grad and self._has_backward(run)

    def _pre_backward(self, unit: int) -> None:
        self._enter_pass(unit)
        self._unshard(unit, "backward")
        resharded = self.knobs.reshard[unit].when(True)
        if resharded is not None and self.inputs.sizes[unit].gathered:
            self._copy_out(unit, "backward", resharded)
            self._release_gather(unit, resharded)
        position = len(self.order) if unit == ROOT else self.order.index(unit)
        default = tuple(s for s in self.scenarios if not (s.targets and s.targets[unit]))
        if position and default and self.inputs.sizes[unit].gathered:
            self._unshard(self.order[position - 1], "backward", default)
        self._prefetch(unit, "backward")

    def _run_backward(self, call: int) -> None:
        entry = self.model.calls[call]
        kind = self.model.kinds[entry.kind]
        self._free(f"K{call}")
        if not kind.output_requires_grad:
            return
        gradients = self.inputs.gradients[call]
        for policy, liveness, when in self._policies(call, kind):
            kept = self._kept_bytes(call, liveness)
            for index, moment in enumerate(liveness.backward):
                live = moment.live_bytes.at(self.inputs.micro_batch, self.inputs.sequence)
                grads = sum(gradients[: moment.num_gradients])
                self.events.append(
                    Touch(
                        parts=(*_split(kept, live), (MemoryCategory.UNSHARDED_GRADIENTS, grads)),
                        moment=f"backward of {entry.path}, point {index}",
                        when=when,
                    )
                )
            if policy is ActivationPolicy.FULL and kind.full is not None:
                self._compute(
                    OperationKind.RECOMPUTE,
                    entry.path,
                    self.durations.recompute_ns(entry.kind),
                    self.durations.recompute_kernels(entry.kind),
                    when,
                    host_waits=_host_waits(kind),
                )
        self._compute(
            OperationKind.BACKWARD,
            entry.path,
            self.durations.backward_ns(entry.kind),
            self.durations.backward_kernels(entry.kind),
        )
        unit = self.partition.unit_of_call[call]
        self._allocate(
            f"G{unit}.{call}",
            Stream.COMPUTE,
            MemoryCategory.UNSHARDED_GRADIENTS,
            sum(gradients),
            f"after backward of {entry.path}",
        )

    def _post_backward(self, unit: int) -> None:
        self.reduced.add(unit)
        self._leave_pass(unit)
        self._free(f"U{unit}")
        while len(self.retained) >= self.knobs.reduce_scatter_max_input_buffers:
            self._pop_retained()
        if self.inputs.sizes[unit].reduce_input:
            self._reduce(unit)

    def _pop_retained(self) -> None:
        unit, operation = self.retained.pop(0)
        self._wait(Stream.COMPUTE, operation)
        self._free(f"R{unit}")

    def _reduce(self, unit: int) -> None:
        size = self.inputs.sizes[unit]
        owner = self.partition.units[unit].name
        moment = f"reduce of {owner}"
        self._allocate(f"R{unit}", Stream.COMPUTE, MemoryCategory.REDUCE_BUFFERS, size.reduce_input, moment)
        chunk_cat = self._operation(
            Operation(
                kind=OperationKind.CHUNK_CAT,
                owner=owner,
                unit=unit,
                phase=self.phase,
                stream=Stream.COMPUTE,
                duration_ns=self.durations.copy_ns(size.gradients, size.reduce_input),
                size_bytes=size.reduce_input,
            )
        )
        for call, owner_unit in enumerate(self.partition.unit_of_call):
            if owner_unit == unit and self.inputs.gradients[call]:
                self._free(f"G{unit}.{call}")
        output = self._allocate_reduce_output(unit, size, moment)
        last = self._reduce_scatter(unit, chunk_cat)
        self.retained.append((unit, last))
        stream = Stream.REDUCE
        if self.knobs.replicate > 1:
            last, stream = self._all_reduce(unit, last), Stream.ALL_REDUCE
        last = self._post_reduce(unit, stream, last)
        self._settle_reduce_output(unit, size, output, moment)
        self.outstanding[stream] = last

    def _allocate_reduce_output(self, unit: int, size: UnitBytes, moment: str) -> str:
        """The reduce-scatter's output: a staging buffer when it is cast afterwards, else the gradient itself."""
        if size.casts:
            name, category = f"Q{unit}", MemoryCategory.REDUCE_BUFFERS
        else:
            name, category = f"D{unit}{'+' if self.knobs.accumulates else ''}", MemoryCategory.GRADIENTS
        self._allocate(name, Stream.REDUCE, category, size.reduce_output, moment)
        return name

    def _settle_reduce_output(self, unit: int, size: UnitBytes, output: str, moment: str) -> None:
        """Cast, accumulate into the existing gradient, and drop what is not needed any more."""
        if size.casts:
            gradient = f"D{unit}{'+' if self.knobs.accumulates else ''}"
            self._allocate(
                gradient,
                self._gradient_pool(size),
                MemoryCategory.GRADIENTS,
                size.sharded_gradients,
                moment,
            )
            if self.knobs.accumulates:
                self._free(gradient)
        if self.knobs.replicate > 1:
            if size.casts or self.knobs.accumulates:
                self.held[unit] = output
        elif size.casts or self.knobs.accumulates:
            self._free(output)

    def _reduce_scatter(self, unit: int, chunk_cat: int) -> int:
        size = self.inputs.sizes[unit]
        alone = self.knobs.shard == 1
        return self._operation(
            Operation(
                kind=OperationKind.LOCAL_REDUCE if alone else OperationKind.REDUCE_SCATTER,
                owner=self.partition.units[unit].name,
                unit=unit,
                phase=self.phase,
                stream=Stream.REDUCE,
                link=None if alone else Link.SHARD,
                duration_ns=(
                    self.durations.copy_ns(size.reduce_input, size.reduce_input)
                    if alone
                    else self.durations.reduce_scatter_ns(size.reduce_input)
                ),
                size_bytes=size.reduce_input,
                waits=(chunk_cat,),
            )
        )

    def _all_reduce(self, unit: int, reduce_scatter: int) -> int:
        size = self.inputs.sizes[unit]
        return self._operation(
            Operation(
                kind=OperationKind.ALL_REDUCE,
                owner=self.partition.units[unit].name,
                unit=unit,
                phase=self.phase,
                stream=Stream.ALL_REDUCE,
                link=Link.SHARD if self.durations.all_reduce_shares_link else Link.REPLICATE,
                duration_ns=self.durations.all_reduce_ns(size.reduce_output),
                size_bytes=size.reduce_output,
                waits=(reduce_scatter,),
            )
        )

    def _post_reduce(self, unit: int, stream: Stream, last: int) -> int:
        size = self.inputs.sizes[unit]
        duration = launches = 0
        if size.casts:
            duration += self.durations.copy_ns(size.reduce_output, size.sharded_gradients)
            launches += 1
        if self.knobs.accumulates:
            duration += self.durations.copy_ns(2 * size.sharded_gradients, size.sharded_gradients)
            launches += 1
        if not launches:
            return last
        return self._operation(
            Operation(
                kind=OperationKind.POST_REDUCE,
                owner=self.partition.units[unit].name,
                unit=unit,
                phase=self.phase,
                stream=stream,
                duration_ns=duration,
                launches=launches,
            )
        )

    def _final_callback(self) -> None:
        for unit, entry in enumerate(self.partition.units):
            if not entry.parameters:
                continue
            if unit not in self.reduced:
                self._post_backward(unit)
            for operation in self.outstanding.values():
                self._wait(Stream.COMPUTE, operation)
            self.outstanding.clear()
            if unit in self.held:
                self._free(self.held.pop(unit))
            self._drop_unused_gather(unit)
        while self.retained:
            self._pop_retained()

    def _drop_unused_gather(self, unit: int) -> None:
        """A gather that nobody waited for (its unit had no backward) ends with the micro-batch."""
        for gather in self.gathers.pop(unit, ()):
            self._wait(Stream.COMPUTE, gather)
            self._free(f"A{unit}")


def _host_waits(kind: CallKind) -> bool:
    return any(region.host_sync for region in kind.regions)


def _split(kept: int, live: int) -> tuple[tuple[MemoryCategory, int], ...]:
    """Live bytes of a call as what it keeps and what is gone afterwards."""
    return (
        (MemoryCategory.ACTIVATIONS, min(kept, live)),
        (MemoryCategory.TRANSIENTS, max(0, live - kept)),
    )
