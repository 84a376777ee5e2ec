"""Owners of Muon's matrices: each matrix has one, which is a rank of its shard group, or none has."""

from collections import Counter
from collections.abc import Iterator

from planner.check.rules.sharding import is_muons
from planner.schema.decisions import Decisions
from planner.schema.request import PlanRequest


def owner_problems(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """What forbids the optimizer to follow the owners."""
    if not decisions.owners:
        return
    listed = Counter(entry.parameter for entry in decisions.owners)
    parameters = dict(request.model.iter_parameters())
    for name, times in listed.items():
        if name not in parameters or parameters[name].tied_to or not is_muons(request, name, parameters[name]):
            yield f"owners: {name!r} is no matrix that Muon updates"
        elif times > 1:
            yield f"owners: {name!r} has {times} owners"
    for name, parameter in parameters.items():
        if name not in listed and parameter.tied_to is None and is_muons(request, name, parameter):
            yield f"owners: {name!r} has none, though others have"
    for entry in decisions.owners:
        if entry.rank >= decisions.mesh.shard:
            yield f"owners: rank {entry.rank} of {entry.parameter!r} is none of {decisions.mesh.shard} shards"
