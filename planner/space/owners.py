"""Owners of Muon's matrices.

[Note: owners or torch's Muon]
torch's Muon runs on sharded matrices and communicates in each Newton-Schulz step: it gathers a wide matrix ten
times, one matrix after the other. An owner gathers its matrix once and runs on it while the other ranks do so with
theirs. Where the client can, matrices therefore have owners; the knob `muon_owners` fixes it either way.
"""

from dataclasses import dataclass, field

from planner.costs.optimizer import muon_matrices
from planner.layout.owners import owners_of
from planner.schema import ClientFeature, MatrixOwner, OptimizerName, PlanRequest
from planner.space.fixed import allowed, allows

MUON_OWNERS = "muon_owners"
NO_OWNERS = (
    "muon_owners: the fixed value is not possible; it is true or false, and true needs the client feature "
    f"{ClientFeature.MUON_OWNERS.value!r}"
)


def has_muon(request: PlanRequest) -> bool:
    """Whether some group of the workload steps by Muon."""
    return any(group.optimizer is OptimizerName.MUON for group in request.workload.optimizer_groups)


def may_have_owners(request: PlanRequest) -> bool:
    """Whether the client can update matrices through owners, and the fixed choices allow it."""
    return (
        has_muon(request) and allows(request, ClientFeature.MUON_OWNERS) and allowed(request, {MUON_OWNERS: True})
    )


@dataclass(slots=True)
class MuonOwners:
    """Owners by shard degree."""

    request: PlanRequest
    _known: dict[int, tuple[MatrixOwner, ...]] = field(init=False, default_factory=dict)

    def of(self, shard: int) -> tuple[MatrixOwner, ...] | None:
        """Balanced over so many ranks.

        Empty where matrices are whole or owners are not allowed; None where the fixed choices leave neither.
        """
        if not has_muon(self.request):
            return ()
        if not may_have_owners(self.request) and not allowed(self.request, {MUON_OWNERS: False}):
            return () if shard == 1 and allowed(self.request, {MUON_OWNERS: True}) else None
        if shard == 1 or not may_have_owners(self.request):
            return ()
        if shard not in self._known:
            matrices = muon_matrices(self.request.workload, self.request.model.iter_parameters())
            self._known[shard] = owners_of(list(matrices.items()), shard)
        return self._known[shard]
