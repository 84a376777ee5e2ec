"""The calls of a model as a plan cuts them: a call with a unit or a checkpointed module inside becomes parts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.schema.decisions import ActivationPolicy, Decisions
from planner.schema.model import LOSS_PATH, ModelDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedCall:
    """A call that was replaced by its parts; `number` tells apart calls of one path."""

    path: str
    kind: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call that runs as one piece."""

    path: str
    kind: str
    origin: int
    """Index in the calls of the model."""
    replaced: tuple[ReplacedCall, ...]
    """Calls that it is a part of, outermost first."""


def is_at_or_below(path: str, module: str) -> bool:
    """Whether a dotted path lies in a module; everything lies in the root."""
    return not module or path == module or path.startswith(f"{module}.")


def is_inside(module: str, path: str) -> bool:
    """Whether a module lies below the module of a call."""
    return bool(path) and module.startswith(f"{path}.")


def planned_calls(model: ModelDescription, decisions: Decisions) -> tuple[PlannedCall, ...]:
    """The calls in the order of the forward, with those replaced that the plan reaches into."""
    inner = {module for unit in decisions.units for module in unit.modules}
    inner |= {item.module for item in decisions.activations if item.policy is not ActivationPolicy.NONE}
    cut = _Cut(model, inner)
    calls: list[PlannedCall] = []
    for origin, call in enumerate(model.calls):
        calls += cut.pieces(PlannedCall(path=call.path, kind=call.kind, origin=origin, replaced=()))
    return tuple(calls)


class _Cut:
    def __init__(self, model: ModelDescription, modules: Iterable[str]) -> None:
        self._model = model
        self._modules = frozenset(modules)
        self._num_replaced = 0

    def pieces(self, call: PlannedCall) -> Iterator[PlannedCall]:
        parts = self._model.kinds[call.kind].parts
        if not parts or call.path == LOSS_PATH or not any(is_inside(module, call.path) for module in self._modules):
            yield call
            return
        replaced = ReplacedCall(path=call.path, kind=call.kind, number=self._num_replaced)
        self._num_replaced += 1
        for part in parts:
            path = f"{call.path}.{part.path}" if part.path else call.path
            whole = (*call.replaced, replaced)
            yield from self.pieces(PlannedCall(path=path, kind=part.kind, origin=call.origin, replaced=whole))
