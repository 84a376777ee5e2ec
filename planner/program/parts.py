"""Blocks replaced by their parts (docs/model.md, "Parts")."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from planner.schema import Call, CallRole, InconsistentRequest, ModelDescription, SharedTensor
from planner.schema.module_paths import modules_above


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedBlock:
    """A block whose call was replaced by its parts: calls `first` to `last`, both included.

    A part that was replaced by its own parts is one too; it follows the block that it is a part of.
    """

    path: str
    kind: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A model with some blocks replaced by their parts."""

    model: ModelDescription
    blocks: tuple[ExpandedBlock, ...]


def expanded(
    model: ModelDescription, unit_modules: Sequence[tuple[str, ...]], checkpointed: Collection[str]
) -> Expansion:
    """Replace blocks with units or checkpointed modules inside them.

    A call is replaced when one of these modules lies strictly below it, and so is each of its parts in turn. A
    shared tensor counts from the first part of its first call to the last part of its last one, and is held
    through the last part of the call that it was held through. What callers hold of a call is its first part's.

    Args:
        model: the description.
        unit_modules: modules of every unit but the root.
        checkpointed: modules that are checkpointed.

    Raises:
        InconsistentRequest: a module lies inside a call, but is none of the parts that this was described by.
    """
    modules = {module for unit in unit_modules for module in unit} | set(checkpointed)
    above = {prefix for module in modules for prefix in modules_above(module)}
    calls: list[Call] = []
    blocks: list[ExpandedBlock] = []
    ranges = []
    for call in model.calls:
        first = len(calls)
        _expand(model, call, above, calls, blocks)
        ranges.append((first, len(calls) - 1))
    _refuse_unreached(model, modules, calls)
    if not blocks:
        return Expansion(model=model, blocks=())
    shared = tuple(_moved(tensor, ranges) for tensor in model.shared)
    held = tuple(
        one.model_copy(update={"call": ranges[one.call][0], "held_until": ranges[one.held_until][1]})
        for one in model.held_inputs
    )
    whole = model.model_copy(update={"calls": tuple(calls), "shared": shared, "held_inputs": held})
    return Expansion(model=whole, blocks=tuple(blocks))


def _expand(
    model: ModelDescription, call: Call, above: Collection[str], calls: list[Call], blocks: list[ExpandedBlock]
) -> None:
    parts = model.kinds[call.kind].parts
    if call.path not in above or not parts:
        calls.append(call)
        return
    first, place = len(calls), len(blocks)
    for part in parts:
        path = f"{call.path}.{part.path}" if part.path else call.path
        _expand(model, Call(path=path, kind=part.kind), above, calls, blocks)
    blocks.insert(place, ExpandedBlock(path=call.path, kind=call.kind, first=first, last=len(calls) - 1))


def _moved(tensor: SharedTensor, ranges: Sequence[tuple[int, int]]) -> SharedTensor:
    first, last = ranges[tensor.first_call][0], ranges[tensor.last_call][1]
    held_until = None if tensor.held_until is None else ranges[tensor.held_until][1]
    return tensor.model_copy(update={"first_call": first, "last_call": last, "held_until": held_until})


def _refuse_unreached(model: ModelDescription, modules: Iterable[str], calls: Sequence[Call]) -> None:
    """A module inside a call that cannot be replaced, or inside one of its parts, has no calls of its own."""
    whole = {call.path for call in model.calls if model.kinds[call.kind].role is not CallRole.GLUE}
    reached = {path for call in calls for path in (call.path, *modules_above(call.path))}
    for module in sorted(modules):
        around = next((prefix for prefix in modules_above(module) if prefix in whole), None)
        if around is not None and module not in reached:
            below = sorted({call.path for call in calls if call.path.startswith(f"{around}.")})
            raise InconsistentRequest(
                f"module {module!r} lies inside {around!r}, which the description does not split there; take "
                f"{around!r} itself" + (f", or one of {', '.join(below)}" if below else "")
            )
