"""What stands between a request and a plan: fixed choices, and knobs that the client does not apply."""

from collections.abc import Sequence

from planner.catalog.torch_versions import supports_feature
from planner.resize import has_plan
from planner.schema import ClientFeature, FixedChoice, PlanRequest
from planner.space.smallest import smallest


def choices_to_drop(request: PlanRequest) -> tuple[FixedChoice, ...]:
    """A smallest set of fixed choices without which there is a plan; empty where there is none even then."""

    def fits_without(dropped: Sequence[int]) -> bool:
        kept = (choice for index, choice in enumerate(request.fixed) if index not in dropped)
        return has_plan(request.model_copy(update={"fixed": tuple(kept)}))

    every = range(len(request.fixed))
    if not every or not fits_without(every):
        return ()
    return tuple(request.fixed[index] for index in smallest(every, fits_without))


def features_to_add(request: PlanRequest) -> tuple[ClientFeature, ...]:
    """A smallest set of knobs with which some plan keeps the bounds, of those that the trainer's torch has and the
    client does not apply; empty where all of them are not enough.
    """
    known = request.client_features
    if known is None:
        return ()

    def fits_with(added: Sequence[ClientFeature]) -> bool:
        return has_plan(request.model_copy(update={"client_features": (*known, *added)}))

    version = request.workload.torch_version
    lacking = [one for one in ClientFeature if one not in known and supports_feature(one, version)]
    if not lacking or not fits_with(lacking):
        return ()
    found = smallest(lacking[::-1], fits_with)
    return tuple(one for one in lacking if one in found)
