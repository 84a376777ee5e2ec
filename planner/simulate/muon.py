"""What Muon asks of a plan: enough rows for torch's, owners that fit for this project's."""

from collections import Counter

from planner.costs.optimizer import largest_shard_degree, muon_matrices
from planner.schema import Decisions, InconsistentRequest, PlanRequest, UnsupportedField


def require_sound_muon(request: PlanRequest, decisions: Decisions) -> None:
    """Refuse meshes and owners that Muon cannot step with.

    Raises:
        UnsupportedField: units on several meshes.
        InconsistentRequest: owners of what are not Muon's matrices, of only some of them, or that are no ranks;
            without owners, more ranks than the smallest matrix has rows.
    """
    _require_sound_owners(request, decisions)
    largest = largest_shard_degree(request.workload, request.model.iter_parameters())
    if largest is None:
        return
    if len(decisions.meshes) > 1:
        raise UnsupportedField(
            "decisions.units[..].mesh", "Muon communicates over one mesh here; leave all units on decisions.mesh"
        )
    shard = decisions.mesh.shard
    if not decisions.owners and shard > largest:
        raise InconsistentRequest(
            f"decisions.mesh.shard is {shard}, but torch's Muon takes no rank without a row, and its smallest "
            f"matrix has {largest} rows; give matrices owners, shard over fewer ranks, or put that matrix in "
            "another optimizer group"
        )


def _require_sound_owners(request: PlanRequest, decisions: Decisions) -> None:
    if not decisions.owners:
        return
    owned = Counter(entry.parameter for entry in decisions.owners)
    matrices = muon_matrices(request.workload, request.model.iter_parameters())
    for name, times in owned.items():
        if name not in matrices or times > 1:
            what = "is listed twice" if name in matrices else "is no matrix of a Muon group"
            raise InconsistentRequest(f"decisions.owners: {name!r} {what}; list each of these once")
    for name in sorted(matrices.keys() - owned.keys()):
        raise InconsistentRequest(
            f"decisions.owners: {name!r} has no owner; all of Muon's matrices have one, or none has"
        )
    for entry in decisions.owners:
        if entry.rank >= decisions.mesh.shard:
            raise InconsistentRequest(
                f"decisions.owners: {entry.parameter!r} is owned by rank {entry.rank}, but there are "
                f"{decisions.mesh.shard} shards"
            )
