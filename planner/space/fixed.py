"""What a request leaves open: the client's features, the trainer's torch, and the choices that a user fixed."""

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from planner.catalog.torch_versions import supports_feature
from planner.schema import ClientFeature, FixedChoice, InconsistentRequest, PlanRequest

GLOBAL_KNOBS = (
    "mesh.shard",
    "mesh.replicate",
    "mesh.large_units.shard",
    "units.embedding",
    "units.head",
    "blocks_per_unit",
    "split_blocks",
    "layouts",
    "alias_gathers",
    "muon_owners",
    "forward_prefetch",
    "backward_prefetch",
    "reduce_scatter_max_input_buffers",
    "separate_reduce_scatter_group",
    "micro_batch",
    "reduce_dtype",
    "optimizer_implementation",
    "gradient_sync",
    "reshard_after_backward",
    "offload",
    "optimizer_offload",
    "activation_offload",
)


class NoValueLeft(InconsistentRequest):
    """The fixed choices leave a knob no value, under one global choice at least."""


def allows(request: PlanRequest, feature: ClientFeature) -> bool:
    """Whether the caller's client, and the torch that it trains with, can apply a knob."""
    applied = request.client_features is None or feature in request.client_features
    return applied and supports_feature(feature, request.workload.torch_version)


def allowed(request: PlanRequest, values: Mapping[str, object]) -> bool:
    """Whether the fixed choices allow these values of global knobs."""
    return all(
        is_chosen(choice.value, value)
        for choice in request.fixed
        for knob, value in values.items()
        if fnmatchcase(knob, choice.knob)
    )


def is_chosen(chosen: object, value: object) -> bool:
    """Whether a value is the one that was chosen, or, after a colon, a variant of it. True is not 1."""
    if isinstance(chosen, str) and isinstance(value, str) and value.startswith(f"{chosen}:"):
        return True
    return isinstance(chosen, bool) == isinstance(value, bool) and chosen == value


def allowed_values(request: PlanRequest, knob: str, values: tuple[object, ...]) -> tuple[object, ...]:
    """Values that the fixed choices leave to a knob.

    Raises:
        NoValueLeft: none is left.
    """
    left = values
    for index, choice in enumerate(request.fixed):
        if not fnmatchcase(knob, choice.knob):
            continue
        before, left = left, tuple(value for value in left if is_chosen(choice.value, value))
        if left:
            continue
        if any(is_chosen(choice.value, value) for value in values):
            raise NoValueLeft(
                f"fixed[{index}]: {choice.knob} = {choice.value!r} contradicts an earlier choice, "
                f"which fixes {knob} to {before[0]}; drop one of them"
            )
        raise NoValueLeft(
            f"fixed[{index}]: {choice.knob} = {choice.value!r} is not possible for {knob}; "
            f"possible values: {', '.join(map(str, values))}"
        )
    return left


def refuse_unknown_knobs(fixed: tuple[FixedChoice, ...], knobs: set[str]) -> None:
    """Raise InconsistentRequest for a fixed choice that no knob of the request matches."""
    known = {*knobs, *GLOBAL_KNOBS}
    for index, choice in enumerate(fixed):
        if not any(fnmatchcase(knob, choice.knob) for knob in known):
            (near,) = get_close_matches(choice.knob, sorted(known), n=1, cutoff=0) or GLOBAL_KNOBS[:1]
            raise InconsistentRequest(
                f"fixed[{index}].knob: {choice.knob!r} matches no knob, the nearest is {near!r}; use one of "
                f"{', '.join(GLOBAL_KNOBS)}, or a pattern of a module with reshard_after_forward, activation, "
                "offload or optimizer_offload after its path"
            )


def keeps_choices(fixed: tuple[FixedChoice, ...], knobs: set[str]) -> bool:
    """Whether each fixed choice is about one of these knobs or a global one: where it is not, it would be lost."""
    known = {*knobs, *GLOBAL_KNOBS}
    return all(any(fnmatchcase(knob, choice.knob) for knob in known) for choice in fixed)
