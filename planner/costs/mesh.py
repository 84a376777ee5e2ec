"""Durations of collectives over the groups of one mesh."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from planner.costs.collectives import Collective, Curve, collective_curve
from planner.costs.slowdown import Slowdown, communication_slowdown
from planner.costs.topology import Topology
from planner.schema import MeshPlan, Profile, SourcedNumber


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeshCosts:
    """Nanoseconds for buffers of so many bytes, stretched by the profile's
    `communication_slowdown_under_compute`.
    """

    mesh: MeshPlan
    shards_cross_nodes: bool
    replicas_cross_nodes: bool

    _topology: Topology
    _profile: Profile | None
    _robust: bool
    _curves: dict[Collective, Curve]
    _partial: dict[int, Curve] = field(default_factory=dict)
    """All-gathers over a part of the shard axis, by number of ranks; worked out when first asked for."""
    _slowdown: Slowdown
    _known_ns: dict[tuple[Collective, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, mesh: MeshPlan, profile: Profile | None, *, robust: bool = False) -> Self:
        """Curves of a mesh on a cluster; `robust` ones are 99th percentiles.

        Raises:
            InconsistentRequest: too large a mesh, or measurements from which no time follows.
        """
        shard, replicate = topology.group(mesh, "shard"), topology.group(mesh, "replicate")
        return cls(
            mesh=mesh,
            shards_cross_nodes=shard.crosses_nodes,
            replicas_cross_nodes=replicate.crosses_nodes,
            _topology=topology,
            _profile=profile,
            _robust=robust,
            _curves={
                "all_gather": collective_curve("all_gather", shard, profile, robust=robust),
                "reduce_scatter": collective_curve("reduce_scatter", shard, profile, robust=robust),
                "all_reduce": collective_curve("all_reduce", replicate, profile, robust=robust),
            },
            _slowdown=communication_slowdown(profile),
        )

    def all_gather_ns(self, size_bytes: int, ranks: int | None = None) -> int:
        """All-gather into a buffer of `size_bytes`, over the shard axis or over `ranks` neighbours of it.

        Raises:
            InconsistentRequest: the shard degree is not a multiple of `ranks`.
        """
        if ranks is None or ranks == self.mesh.shard:
            return self._collective_ns("all_gather", size_bytes)
        return self._slowdown.stretched_ns(self._partial_curve(ranks).time_ns(size_bytes))

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        """Reduce-scatter over the shard axis of a buffer of `size_bytes`."""
        return self._collective_ns("reduce_scatter", size_bytes)

    def all_reduce_ns(self, size_bytes: int) -> int:
        """All-reduce over the replicate axis of a buffer of `size_bytes`."""
        return self._collective_ns("all_reduce", size_bytes)

    def sources(self, where: str = "") -> Iterator[SourcedNumber]:
        """The numbers behind the curves; `where` tells them from those of another mesh."""
        for name, curve in self._curves.items():
            yield from curve.sources(f"{name}{where}")

    def partial_sources(self, num_ranks: int) -> tuple[SourcedNumber, ...]:
        """The numbers behind the gathers over so many ranks."""
        return self._partial_curve(num_ranks).sources(f"all_gather over {num_ranks} ranks")

    def _partial_curve(self, num_ranks: int) -> Curve:
        if num_ranks not in self._partial:
            group = self._topology.neighbours(self.mesh, num_ranks)
            self._partial[num_ranks] = collective_curve("all_gather", group, self._profile, robust=self._robust)
        return self._partial[num_ranks]

    def _collective_ns(self, collective: Collective, size_bytes: int) -> int:
        """The units of a model have few sizes, and a program asks for each of them many times."""
        known = self._known_ns.get((collective, size_bytes))
        if known is None:
            known = self._slowdown.stretched_ns(self._curves[collective].time_ns(size_bytes))
            self._known_ns[collective, size_bytes] = known
        return known
