"""Tensors that several calls save: alive from the forward of their first call to its backward."""

from collections import defaultdict
from collections.abc import Iterator

from planner.program.build.emitter import Emitter
from planner.program.choices import ALWAYS, Condition, both
from planner.program.events import Stream
from planner.program.step import Knobs, StepInputs
from planner.schema import ActivationPolicy, KeptBy, MemoryCategory, SharedTensor


class SharedTensors:
    """Emits the shared tensors of a model, each once."""

    def __init__(self, inputs: StepInputs, knobs: Knobs, emitter: Emitter) -> None:
        self._model = inputs.partition.model
        self._knobs = knobs
        self._emitter = emitter
        self._blocks = inputs.partition.blocks
        self._first_kept: dict[int, list[tuple[str, int, SharedTensor]]] = defaultdict(list)
        for index, tensor in enumerate(self._model.shared):
            size = tensor.size_bytes.at(inputs.micro_batch, inputs.sequence)
            self._first_kept[tensor.first_call].append((f"X{index}", size, tensor))

    def first_kept_bytes(self, call: int) -> int:
        """Bytes of those whose first call this is."""
        return sum(size for _, size, _ in self._first_kept.get(call, ()))

    def keep(self, call: int, moment: str) -> None:
        """Allocate those whose first call this is."""
        for name, size, tensor in self._first_kept.get(call, ()):
            for when in self._conditions(tensor):
                self._emitter.allocate(name, Stream.COMPUTE, MemoryCategory.ACTIVATIONS, size, moment, when)

    def free(self, call: int) -> None:
        """Free those whose first call this is, in its backward."""
        for name, _, _ in self._first_kept.get(call, ()):
            self._emitter.free(name)

    def _conditions(self, tensor: SharedTensor) -> Iterator[Condition]:
        """Conditions of which at most one holds; the tensor is kept when one does."""
        if tensor.kept_by is KeptBy.BOTH:
            yield ALWAYS
            return
        checkpointed = tensor.kept_by is KeptBy.FULL
        none_before = ALWAYS
        for call in range(tensor.first_call, tensor.last_call + 1):
            options = self._options(call)
            yield from (
                both(none_before, when) for is_checkpointed, when in options if is_checkpointed is checkpointed
            )
            others = [when for is_checkpointed, when in options if is_checkpointed is not checkpointed]
            if options and not others:
                return
            if options:
                none_before = both(none_before, others[0])

    def _options(self, call: int) -> list[tuple[bool, Condition]]:
        """Whether the call is checkpointed, and when; nothing for calls that cannot be."""
        if self._model.kinds[self._model.calls[call].kind].full is None:
            return []
        for block in self._blocks:
            if block.path in self._knobs.checkpointed_blocks and block.first <= call <= block.last:
                return [(True, ALWAYS)]
        choice = self._knobs.activation.get(call)
        if choice is None:
            return [(False, ALWAYS)]
        kept = (ActivationPolicy.NONE, ActivationPolicy.OFFLOAD)
        return [(activation.policy not in kept, when) for activation, when in choice]
