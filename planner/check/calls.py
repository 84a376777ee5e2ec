"""The calls of a model under the activation policies of a plan."""

from planner.schema.model import LOSS_PATH, CallKind, Liveness, ModelDescription
from planner.schema.plan import ActivationPolicy, Decisions
from planner.schema.polynomial import Polynomial
from planner.schema.request import PlanRequest


class Calls:
    """Bytes at one (micro-batch, sequence) point and gradients of each call, by its index in the forward."""

    def __init__(self, request: PlanRequest, decisions: Decisions) -> None:
        self._model = request.model
        self._micro_batch = decisions.micro_batch
        self._sequence = request.workload.sequence
        self._checkpointed = {item.module for item in decisions.activations if item.policy is ActivationPolicy.FULL}
        indices = range(len(self._model.calls))
        self.loss = [index for index in indices if self._model.calls[index].path == LOSS_PATH]
        """Calls outside the root module."""
        self.main = [index for index in indices if self._model.calls[index].path != LOSS_PATH]
        """Calls inside the root module."""
        self._trainable = {
            name: parameter.tied_to or name
            for name, parameter in self._model.iter_parameters()
            if parameter.requires_grad
        }

    def kind_name(self, index: int) -> str:
        """Key of the call's kind."""
        return self._model.calls[index].kind

    def kind(self, index: int) -> CallKind:
        """What the call does."""
        return self._model.kinds[self.kind_name(index)]

    def is_checkpointed(self, index: int) -> bool:
        """Whether backward recomputes the call."""
        return self._model.calls[index].path in self._checkpointed

    def host_waits(self, index: int) -> bool:
        """Whether the host waits for the device in the forward of the call."""
        return any(region.host_sync for region in self.kind(index).regions)

    def liveness(self, index: int) -> Liveness:
        """What the call keeps and needs under its policy."""
        kind = self.kind(index)
        if not self.is_checkpointed(index):
            return kind.none
        assert kind.full is not None, "checked with the structure of the plan"
        return kind.full

    def at(self, size_bytes: Polynomial) -> int:
        """Value at the point of the plan."""
        return size_bytes.at(self._micro_batch, self._sequence)

    def kept_bytes(self, index: int) -> int:
        """What stays from forward to backward, with the shared tensors that this call is the first to save."""
        shared = sum(self.at(t.size_bytes) for t in self._model.shared if t.first_call == index)
        return self.liveness(index).kept_bytes(self._micro_batch, self._sequence) + shared

    def gradients(self, index: int) -> list[str | None]:
        """Storages in the order in which backward completes their gradients; None for a frozen parameter."""
        names = gradient_names(self._model, index)
        return [self._trainable.get(name) for name in names]

    def with_gradient(self) -> set[str]:
        """Parameters that get a gradient at all."""
        running = [index for index in (*self.main, *self.loss) if self.kind(index).output_requires_grad]
        return {name for index in running for name in self.gradients(index) if name is not None}


def gradient_names(model: ModelDescription, index: int) -> list[str]:
    """Full names in the gradient order of a call."""
    call = model.calls[index]
    prefix = "" if call.path in ("", LOSS_PATH) else f"{call.path}."
    return [prefix + name for name in model.kinds[call.kind].gradient_order]
