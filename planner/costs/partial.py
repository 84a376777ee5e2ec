"""All-gathers over a part of the shard axis, which units that are resharded in part need in backward."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.costs.collectives import Curve, collective_curve
from planner.costs.topology import Topology
from planner.schema import MeshPlan, Profile, SourcedNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGathers:
    """Curves by number of ranks, worked out when first asked for."""

    topology: Topology
    mesh: MeshPlan
    profile: Profile | None
    _curves: dict[int, Curve] = field(default_factory=dict)

    def curve(self, num_ranks: int) -> Curve:
        """All-gather over so many neighbours.

        Raises:
            InconsistentRequest: the shard degree is not a multiple of it, or the measured curve is unusable.
        """
        if num_ranks not in self._curves:
            group = self.topology.neighbours(self.mesh, num_ranks)
            self._curves[num_ranks] = collective_curve("all_gather", group, self.profile)
        return self._curves[num_ranks]

    def sources(self, sizes: Iterable[int]) -> tuple[SourcedNumber, ...]:
        """The numbers behind the gathers over these numbers of ranks."""
        return tuple(
            number
            for num_ranks in sorted(set(sizes))
            for number in self.curve(num_ranks).sources(f"all_gather over {num_ranks} ranks")
        )
