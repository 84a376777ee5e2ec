"""Activation checkpointing: of calls that exist, in ways that were described."""

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.check.calls import CHECKPOINTING, selected
from planner.check.parts import PlannedCall, is_inside
from planner.schema.decisions import ActivationPlan, ActivationPolicy, Decisions
from planner.schema.model import CallKind, ModelDescription


def activation_problems(
    model: ModelDescription, decisions: Decisions, calls: Sequence[PlannedCall]
) -> Iterator[str]:
    """Each planned module is a call whose kind knows the policy, and no other one is planned inside it."""
    for module, number in Counter(item.module for item in decisions.activations).items():
        if number > 1:
            yield f"activations of {module!r} are planned {number} times"
    for item in decisions.activations:
        yield from _activation(model, calls, item)
    modules = [item.module for item in decisions.activations if item.policy in CHECKPOINTING]
    replaced = {whole.path for call in calls for whole in call.replaced}
    offloaded = [item.module for item in decisions.activations if item.policy is ActivationPolicy.OFFLOAD]
    for inner in offloaded:
        if inner in replaced:
            yield f"activations of {inner!r}: offload around units is not modelled; offload the parts"
        for outer in modules:
            if is_inside(inner, outer):
                yield f"activations of {inner!r} are offloaded inside {outer!r}, which keeps nothing of them"
    for inner in modules:
        for outer in modules:
            if inner in replaced and is_inside(inner, outer):
                yield f"activations of {inner!r} lie inside those of {outer!r} and are split; checkpoint one"


def _activation(model: ModelDescription, calls: Sequence[PlannedCall], item: ActivationPlan) -> Iterator[str]:
    title = f"activations of {item.module!r}"
    replaced = {whole.kind for call in calls for whole in call.replaced if whole.path == item.module}
    whole = {call.kind for call in calls if call.path == item.module and not _is_glue_of_replaced(call)}
    kinds = {name: model.kinds[name] for name in sorted(replaced | whole)}
    if not kinds:
        yield f"{title}: no call has this path"
    if item.saved_ops and item.policy is not ActivationPolicy.SELECTIVE:
        yield f"{title}: saved_ops belong to the policy selective, not to {item.policy}"
    if item.policy is ActivationPolicy.FULL and any(kind.full is None for kind in kinds.values()):
        yield f"{title}: its kind cannot be checkpointed (no `full` liveness)"
    if item.policy is ActivationPolicy.SELECTIVE:
        if replaced:
            yield f"{title}: selective checkpointing around units is not modelled; checkpoint in full, or the parts"
        for name, kind in kinds.items():
            yield from _selective(title, name, kind, item)


def _is_glue_of_replaced(call: PlannedCall) -> bool:
    return any(whole.path == call.path for whole in call.replaced)


def _selective(title: str, name: str, kind: CallKind, item: ActivationPlan) -> Iterator[str]:
    if selected(kind, item) is None:
        known = "; ".join(", ".join(entry.saved_ops) for entry in kind.selective) or "none"
        wanted = ", ".join(item.saved_ops) or "nothing"
        yield f"{title}: kind {name!r} does not describe checkpointing that keeps {wanted} (described: {known})"
