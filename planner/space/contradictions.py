"""Which of the fixed choices leave no plan, once it is known that they do not."""

from collections.abc import Callable, Sequence

from planner.schema import ClientFeature, FixedChoice, InconsistentRequest, PlanRequest
from planner.space.fixed import allows
from planner.space.smallest import smallest

_OFFLOADS = {
    "optimizer_offload": "none, host, host:all, nvme or nvme:all",
    ".optimizer_offload": "none, host or nvme",
    "activation_offload": "0, 1, 2 or 4",
    "offload": "none, some or all",
    ".offload": "true or false",
}
"""Values of knobs that leave nothing when they have another; those of a unit begin with a dot."""


def no_plan_left(request: PlanRequest, refusal_of: Callable[[PlanRequest], str | None]) -> InconsistentRequest:
    """An error that names a smallest set of choices without which a plan would be possible.

    Args:
        request: of which no plan is left.
        refusal_of: None for a request that has any global choice, else why not, as far as that is known. Asked
            about once for each fixed choice.
    """
    left = smallest(
        tuple(enumerate(request.fixed)), lambda choices: refusal_of(_with(request, choices)) is not None
    )
    return InconsistentRequest(_said(request, left, refusal_of(_with(request, left)) or ""))


def _with(request: PlanRequest, fixed: Sequence[tuple[int, FixedChoice]]) -> PlanRequest:
    return request.model_copy(update={"fixed": tuple(choice for _, choice in fixed)})


def _said(request: PlanRequest, left: Sequence[tuple[int, FixedChoice]], refusal: str) -> str:
    if not left:
        return "fixed: no plan is left, with or without them, by the cluster and the client's features"
    named = [f"fixed[{index}]: {choice.knob} = {choice.value!r}" for index, choice in left]
    if len(named) > 1:
        return f"{named[-1]} leaves no plan together with {' and '.join(named[:-1])}; drop one of them"
    if refusal:
        return f"{named[0]} leaves no plan: {refusal}"
    return f"{named[0]} leaves no plan{_hint(request, left[0][1])}"


def _hint(request: PlanRequest, choice: FixedChoice) -> str:
    if not choice.knob.endswith("offload"):
        return " that the cluster and the client's features allow"
    groups, value = request.cluster.node_groups, str(choice.value)
    if not all(group.host_memory_bytes for group in groups):
        return ": the cluster does not say how much memory its hosts have (node_groups.host_memory_bytes)"
    if value.startswith("nvme") and not all(group.nvme_bytes for group in groups):
        return ": the cluster has no drives (node_groups.nvme_bytes)"
    lacking = [feature for feature in _features(choice.knob, value) if not allows(request, feature)]
    if lacking:
        return f": the client, or its torch, lacks {lacking[0].value}"
    end = choice.knob if choice.knob in _OFFLOADS else f".{choice.knob.rpartition('.')[2]}"
    return (
        f": {choice.knob} may be {_OFFLOADS.get(end, 'another value')}, as far as the cluster and the client allow"
    )


def _features(knob: str, value: str) -> tuple[ClientFeature, ...]:
    if "optimizer" in knob:
        nvme = value.startswith("nvme")
        return (ClientFeature.OPTIMIZER_NVME if nvme else ClientFeature.OPTIMIZER_OFFLOAD,)
    return (ClientFeature.ACTIVATION_OFFLOAD if "activation" in knob else ClientFeature.OFFLOAD,)
