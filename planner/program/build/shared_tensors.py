"""Tensors that several calls save: alive from the forward of their first call to its backward.

Those that the code around the calls holds are alive for some calls in any case, and beyond where one keeps them.
"""

from collections import defaultdict

from planner.program.build.emitter import Emitter
from planner.program.choices import ALWAYS, Condition, any_of
from planner.program.events import Phase, Stream
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
        self._held: dict[str, tuple[int, SharedTensor]] = {}
        """Those that a checkpoint holds while its block has its backward, and their bytes."""
        self._with_callers: dict[str, tuple[int, SharedTensor]] = {}
        """Those that the code around the calls holds now, and their bytes."""

    def first_kept_bytes(self, call: int) -> int:
        """Bytes of those whose first call this is."""
        return sum(size for _, size, _ in self._first_kept.get(call, ()))

    def keep(self, call: int, moment: str) -> None:
        """Allocate those whose first call this is."""
        for name, size, tensor in self._first_kept.get(call, ()):
            if tensor.held_until is not None and self._emitter.phase is Phase.FORWARD:
                self._with_callers[name] = (size, tensor)
                self._allocate(name, size, moment, ALWAYS)
            elif name not in self._held:
                self._allocate(name, size, moment, self._condition(tensor))

    def let_go(self, call: int) -> None:
        """Of those that the code around the calls held up to one before this call only what is kept stays."""
        for name, (size, tensor) in list(self._with_callers.items()):
            if tensor.held_until is not None and tensor.held_until < call:
                del self._with_callers[name]
                moment = f"after forward of {self._model.calls[tensor.held_until].path}"
                self._emitter.free(name)
                self._allocate(name, size, moment, self._condition(tensor))

    def _allocate(self, name: str, size_bytes: int, moment: str, when: Condition | None) -> None:
        if when is not None:
            self._emitter.allocate(name, Stream.COMPUTE, MemoryCategory.ACTIVATIONS, size_bytes, moment, when)

    def free(self, call: int) -> None:
        """Free those whose first call this is, in its backward, unless a checkpoint holds them."""
        for name, _, _ in self._first_kept.get(call, ()):
            if name not in self._held:
                self._emitter.free(name)

    def begin_recomputation(self, first: int) -> None:
        """The first part of a checkpointed block keeps from now on what it saves; the checkpoint holds inputs."""
        tensors = self._first_kept.get(first, ())
        self._held = {name: (size, tensor) for name, size, tensor in tensors if tensor.kept_by is KeptBy.FULL}
        self.free(first)

    def held_bytes(self, *, first: bool) -> int:
        """Bytes that the checkpoint of the block in backward holds and that forward moments of a part count.

        Those of parts after the first leave out what callers hold.
        """
        return sum(size for size, tensor in self._held.values() if first or tensor.held_until is None)

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
