"""Tensors that several calls save: alive from the forward of their first call to its backward."""

from collections import defaultdict

from planner.program.build.emitter import Emitter
from planner.program.choices import ALWAYS, Condition, any_of
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
        self._held: dict[str, int] = {}
        """Those that a checkpoint holds while its block has its backward, and their bytes."""

    def first_kept_bytes(self, call: int) -> int:
        """Bytes of those whose first call this is."""
        return sum(size for _, size, _ in self._first_kept.get(call, ()))

    def keep(self, call: int, moment: str) -> None:
        """Allocate those whose first call this is."""
        for name, size, tensor in self._first_kept.get(call, ()):
            when = self._condition(tensor)
            if when is not None and name not in self._held:
                self._emitter.allocate(name, Stream.COMPUTE, MemoryCategory.ACTIVATIONS, size, moment, when)

    def free(self, call: int) -> None:
        """Free those whose first call this is, in its backward, unless a checkpoint holds them."""
        for name, _, _ in self._first_kept.get(call, ()):
            if name not in self._held:
                self._emitter.free(name)

    def begin_recomputation(self, first: int) -> None:
        """The first part of a checkpointed block keeps from now on what it saves; the checkpoint holds inputs."""
        tensors = self._first_kept.get(first, ())
        self._held = {name: size for name, size, tensor in tensors if tensor.kept_by is KeptBy.FULL}
        self.free(first)

    @property
    def held_bytes(self) -> int:
        """Bytes of what the checkpoint of the block that has its backward holds."""
        return sum(self._held.values())

    def end_backward(self) -> None:
        """The checkpoint lets go of what it holds."""
        for name in self._held:
            self._emitter.free(name)
        self._held = {}

    def _condition(self, tensor: SharedTensor) -> Condition | None:
        """When the tensor is kept; None: never."""
        if tensor.kept_by is KeptBy.BOTH:
            return ALWAYS
        checkpointed = tensor.kept_by is KeptBy.FULL
        return any_of(
            when
            for call in range(tensor.first_call, tensor.last_call + 1)
            for is_checkpointed, when in self._options(call)
            if is_checkpointed is checkpointed
        )

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
