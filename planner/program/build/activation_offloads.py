"""Activations of chosen calls on the host: out after the forward, in again one call ahead of the backward."""

from collections import defaultdict

from planner.program.build.emitter import Emitter
from planner.program.events import OperationKind, Stream
from planner.program.step import Durations, StepInputs
from planner.schema import MemoryCategory


class ActivationOffloads:
    """State of the copies while a micro-batch is walked through."""

    def __init__(self, inputs: StepInputs, durations: Durations, emitter: Emitter) -> None:
        self._durations = durations
        self._emitter = emitter
        model = inputs.partition.model
        self._calls = model.calls
        self._held_inputs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Of each call, what the code around it holds: the last call that it does so through, and bytes."""
        for held in model.held_inputs:
            size = held.size_bytes.at(inputs.micro_batch, inputs.sequence)
            self._held_inputs[held.call].append((held.held_until, size))
        self._with_callers: dict[str, int] = {}
        """What they hold now, and the last call that they do so through."""
        self._leaving: tuple[int, int] | None = None
        """Call whose copies are on their way out, and the operation."""
        self._away: list[tuple[int, int]] = []
        """Calls whose activations are on the host, and how many bytes, in forward order."""
        self._sent: set[int] = set()
        self._fetched: dict[int, int] = {}

    def out(self, call: int, size_bytes: int, unit: int) -> None:
        """Copy what a call has kept to the host."""
        if not size_bytes:
            return
        duration = self._durations.device_to_host_ns(size_bytes)
        operation = self._copy(OperationKind.ACTIVATION_OUT, call, size_bytes, duration, unit)
        self._leaving = call, operation
        self._away.append((call, size_bytes))
        self._sent.add(call)

    def release(self, after: int | None = None) -> None:
        """Free on the device what the call before has sent, but for what is still held after the call `after`."""
        if self._leaving is None:
            return
        call, operation = self._leaving
        self._emitter.wait(Stream.COMPUTE, operation)
        self._emitter.free(f"K{call}")
        self._leaving = None
        for number, (held_until, size) in enumerate(self._held_inputs.get(call, ())):
            if after is not None and after <= held_until:
                name = f"N{call}.{number}"
                moment = f"after forward of {self._calls[after].path}"
                self._with_callers[name] = held_until
                self._emitter.allocate(name, Stream.COMPUTE, MemoryCategory.ACTIVATIONS, size, moment)

    def let_go(self, call: int) -> None:
        """Before a call: the code around the calls lets go of what it held up to one before."""
        for name in [name for name, held_until in self._with_callers.items() if held_until < call]:
            del self._with_callers[name]
            self._emitter.free(name)

    def wait_for(self, call: int, unit: int) -> None:
        """Let compute wait until a call's activations are back, and fetch those of the offloaded call before it.

        A call that kept nothing has sent nothing, and does neither.
        """
        if call not in self._sent:
            return
        if self._away and self._away[-1][0] == call:
            self._fetch(unit)
        if call in self._fetched:
            self._emitter.wait(Stream.COMPUTE, self._fetched.pop(call))
        if self._away:
            self._fetch(unit)

    def _fetch(self, unit: int) -> None:
        call, size_bytes = self._away.pop()
        moment = f"fetch of {self._calls[call].path}"
        self._emitter.allocate(f"K{call}", Stream.COMPUTE, MemoryCategory.ACTIVATIONS, size_bytes, moment)
        duration = self._durations.host_to_device_ns(size_bytes)
        self._fetched[call] = self._copy(OperationKind.ACTIVATION_IN, call, size_bytes, duration, unit)

    def _copy(self, kind: OperationKind, call: int, size_bytes: int, duration_ns: int, unit: int) -> int:
        return self._emitter.operation(
            kind,
            unit,
            Stream.OFFLOAD,
            duration_ns,
            owner=self._calls[call].path,
            size_bytes=size_bytes,
            waits=self._emitter.latest_of(Stream.COMPUTE),
        )
