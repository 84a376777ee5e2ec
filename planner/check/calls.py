"""What the calls of a plan keep, need and make under its activation policies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.check.parts import PlannedCall, planned_calls
from planner.schema.decisions import ActivationPlan, ActivationPolicy, Decisions
from planner.schema.model import (
    LOSS_PATH,
    OUTPUT_PATH,
    CallKind,
    KeptBy,
    Liveness,
    ModelDescription,
    Moment,
    SelectiveCheckpoint,
    SharedTensor,
)
from planner.schema.polynomial import Polynomial
from planner.schema.request import PlanRequest

CHECKPOINTING = (ActivationPolicy.FULL, ActivationPolicy.SELECTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedBlock:
    """A call under full checkpointing that was replaced by its parts."""

    path: str
    first: int
    last: int
    recomputed_to: int | None
    """Last part that a recomputation runs; None when no backward needs it.

    Recomputation starts when a backward needs what the forward did not keep, and stops as soon as the last of that
    is there again (`torch.utils.checkpoint`, early stop): parts behind the last one that saves something neither
    start it nor run again.
    """
    forward: tuple[Moment, ...]
    """Allocation points of the whole block in forward."""
    kept_bytes: int
    """From the end of the forward to the recomputation."""
    held_bytes: int
    """Inputs that no part saves: the checkpoint holds them from the recomputation to the end of the backward."""
    shared_bytes: int
    """Shared tensors that the block saves first; its first part keeps them once it is recomputed."""
    shared_inputs_bytes: int
    """Of these, those that only checkpoints keep; part of `held_bytes`."""
    held_by_caller_bytes: int
    """Of these, those that the code around the calls holds too: moments of parts after the first leave them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentTensor:
    """What no call keeps on the device, but the code around the calls holds for some of them.

    It is alive from the end of the forward of `first_call` (of what that call has sent to the host, once it has
    left) until the call after `last_call` is entered.
    """

    first_call: int
    last_call: int
    size_bytes: int


class Calls:
    """Bytes at one (micro-batch, sequence) point and gradients of each call, by its index in the forward."""

    def __init__(self, request: PlanRequest, decisions: Decisions) -> None:
        self._model = request.model
        self._micro_batch = decisions.micro_batch
        self._sequence = request.workload.sequence
        self._policies = {item.module: item for item in decisions.activations if item.policy in CHECKPOINTING}
        self._offloaded = {item.module for item in decisions.activations if item.policy is ActivationPolicy.OFFLOAD}
        self.planned = planned_calls(self._model, decisions)
        indices = range(len(self.planned))
        self.output_cast = [index for index in indices if self.planned[index].path == OUTPUT_PATH]
        """The cast of what the root module returns, the last of its hooks."""
        self.loss = [index for index in indices if self.planned[index].path == LOSS_PATH]
        """Calls outside the root module."""
        self.main = [index for index in indices if index not in (*self.output_cast, *self.loss)]
        """Calls inside the root module."""
        self._first_parts = {call.origin: index for index, call in reversed(list(enumerate(self.planned)))}
        self._trainable = trainable_storages(self._model)
        self._first_uses = first_uses(self._model, self.planned)
        blocks = self._blocks()
        self.blocks: Mapping[int, CheckpointedBlock] = {
            index: block for block in blocks for index in range(block.first, block.last + 1)
        }
        """Checkpointed block of each of its parts."""
        self.lent = tuple(self._lent())
        """Of shared tensors."""
        self.lent_inputs = tuple(
            LentTensor(
                first_call=self._first_parts[held.call],
                last_call=self._last_of(held.held_until),
                size_bytes=self.at(held.size_bytes),
            )
            for held in self._model.held_inputs
        )
        """Of what calls keep for themselves."""

    def kind_name(self, index: int) -> str:
        """Key of the call's kind."""
        return self.planned[index].kind

    def kind(self, index: int) -> CallKind:
        """What the call does."""
        return self._model.kinds[self.kind_name(index)]

    def policy(self, index: int) -> ActivationPlan | None:
        """Checkpointing of the call itself, not of a block that it is a part of."""
        call = self.planned[index]
        is_glue_of_block = any(whole.path == call.path for whole in call.replaced)
        return None if is_glue_of_block else self._policies.get(call.path)

    def host_waits(self, index: int) -> bool:
        """Whether the host waits for the device in the forward of the call."""
        return any(region.host_sync for region in self.kind(index).regions)

    def liveness(self, index: int) -> Liveness:
        """What the call keeps and needs under its policy; parts of a checkpointed block keep all that they save."""
        kind, policy = self.kind(index), self.policy(index)
        if policy is None:
            return kind.none
        entry = selected(kind, policy)
        found = entry.liveness if entry else kind.full
        assert found is not None, "checked with the structure of the plan"
        return found

    def saved_ops(self, index: int) -> tuple[str, ...]:
        """Operations whose outputs a selectively checkpointed call keeps."""
        policy = self.policy(index)
        entry = selected(self.kind(index), policy) if policy else None
        return entry.saved_ops if entry else ()

    def at(self, size_bytes: Polynomial) -> int:
        """Value at the point of the plan."""
        return size_bytes.at(self._micro_batch, self._sequence)

    def kept_bytes(self, index: int) -> int:
        """What stays from forward or recomputation to backward, with shared tensors that this call saves first."""
        is_first = self._first_parts[self.planned[index].origin] == index
        shared = self._shared_bytes(self.planned[index].origin) if is_first else 0
        return self._kept_alone(index) + shared

    def offloaded_bytes(self, index: int) -> int:
        """What goes to the host after the forward of the call; shared tensors stay."""
        path = self.planned[index].path
        return self._kept_alone(index) if path in self._offloaded and not self.policy(index) else 0

    def _kept_alone(self, index: int) -> int:
        return self.liveness(index).kept_bytes(self._micro_batch, self._sequence)

    def _shared_bytes(self, origin: int) -> int:
        return sum(self.at(tensor.size_bytes) for tensor in self._kept_first(origin))

    def _kept_first(self, origin: int) -> list[SharedTensor]:
        """Shared tensors that are kept from a call of the model on."""
        return [one for one in self._model.shared if one.first_call == origin and self._is_kept(one)]

    def _lent(self) -> Iterator[LentTensor]:
        for tensor in self._model.shared:
            if tensor.held_until is not None and not self._is_kept(tensor):
                first = self._first_parts[tensor.first_call]
                block = self.blocks.get(first)
                yield LentTensor(
                    first_call=first if block is None else block.last,
                    last_call=self._last_of(tensor.held_until),
                    size_bytes=self.at(tensor.size_bytes),
                )

    def _last_of(self, origin: int) -> int:
        return max(index for index, call in enumerate(self.planned) if call.origin <= origin)

    def _is_kept(self, tensor: SharedTensor) -> bool:
        holders = [
            index
            for index, call in enumerate(self.planned)
            if tensor.first_call <= call.origin <= tensor.last_call and self.kind(index).full is not None
        ]
        checkpointed = [self.policy(index) is not None or self._is_recomputed(index) for index in holders]
        match tensor.kept_by:
            case KeptBy.FULL:
                return any(checkpointed)
            case KeptBy.NONE:
                return not all(checkpointed)
            case _:
                return True

    def _is_recomputed(self, index: int) -> bool:
        return any(whole.path in self._policies for whole in self.planned[index].replaced)

    def gradients(self, index: int) -> list[str | None]:
        """Storages in the order in which backward makes their gradients; None for a frozen parameter."""
        return [self._trainable.get(name) for name in gradient_names(self._model, self.planned[index])]

    def completes(self, index: int, name: str) -> bool:
        """Whether no call that runs later in backward makes a gradient of this storage."""
        return self._first_uses[name] == index

    def with_gradient(self) -> set[str]:
        """Storages that get a gradient at all."""
        return set(self._first_uses)

    def _blocks(self) -> list[CheckpointedBlock]:
        parts: dict[int, list[int]] = {}
        for index in self.main:
            for whole in self.planned[index].replaced:
                if whole.path in self._policies:
                    parts.setdefault(whole.number, []).append(index)
        return [self._block(indices) for indices in parts.values()]

    def _block(self, indices: Sequence[int]) -> CheckpointedBlock:
        first = self.planned[indices[0]]
        whole = next(whole for whole in first.replaced if whole.path in self._policies)
        full = self._model.kinds[whole.kind].full
        assert full is not None, "checked with the structure of the plan"
        is_first = self._first_parts[first.origin] == indices[0]
        shared = self._shared_bytes(first.origin) if is_first else 0
        inputs = [tensor for tensor in self._kept_first(first.origin) if tensor.kept_by is KeptBy.FULL]
        shared_inputs = sum(self.at(tensor.size_bytes) for tensor in inputs) if is_first else 0
        held = [self.at(tensor.size_bytes) for tensor in inputs if tensor.held_until is not None]
        held_by_caller = sum(held) if is_first else 0
        running = [index for index in indices if self.kind(index).output_requires_grad]
        saving = [index for index in running if self.kind(index).none.saved]
        none = self._model.kinds[whole.kind].none
        kept_bytes = full.kept_bytes(self._micro_batch, self._sequence)
        saved_inputs = sum(self.at(tensor.size_bytes) for tensor in none.saved if tensor.from_input)
        return CheckpointedBlock(
            path=whole.path,
            first=indices[0],
            last=indices[-1],
            recomputed_to=max(saving or running, default=None),
            forward=full.forward,
            kept_bytes=kept_bytes,
            held_bytes=max(0, kept_bytes - saved_inputs) + shared_inputs,
            shared_bytes=shared,
            shared_inputs_bytes=shared_inputs,
            held_by_caller_bytes=held_by_caller,
        )


def selected(kind: CallKind, policy: ActivationPlan) -> SelectiveCheckpoint | None:
    """The described way of selective checkpointing that keeps the outputs of the plan's operations, if any."""
    if policy.policy is not ActivationPolicy.SELECTIVE:
        return None
    wanted = set(policy.saved_ops)
    return next((entry for entry in kind.selective if set(entry.saved_ops) == wanted), None)


def gradient_names(model: ModelDescription, call: PlannedCall) -> list[str]:
    """Full names in the gradient order of a call."""
    prefix = "" if call.path in ("", LOSS_PATH) else f"{call.path}."
    return [prefix + name for name in model.kinds[call.kind].gradient_order]


def trainable_storages(model: ModelDescription) -> dict[str, str]:
    """Storage of each trainable parameter by full name: the parameter that it is tied to, or itself."""
    return {
        name: parameter.tied_to or name for name, parameter in model.iter_parameters() if parameter.requires_grad
    }


def first_uses(model: ModelDescription, calls: Sequence[PlannedCall]) -> dict[str, int]:
    """First call with a backward that makes a gradient of each storage."""
    trainable, first = trainable_storages(model), dict[str, int]()
    for index, call in enumerate(calls):
        if model.kinds[call.kind].output_requires_grad:
            for name in gradient_names(model, call):
                if name in trainable:
                    first.setdefault(trainable[name], index)
    return first
