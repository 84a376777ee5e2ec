"""What a plan asks of the machine besides its mesh: further meshes and communicators, and the host."""

from dataclasses import dataclass
from typing import Self

from planner.schema import ActivationPolicy, Decisions, MatrixOwner, MeshPlan, StateTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The knobs that change budget and sources of a cost model; the default asks for nothing."""

    meshes: tuple[MeshPlan, ...] = ()
    """Of units that have one of their own, each once."""
    partial_reshards: tuple[int, ...] = ()
    """Ranks that a unit is resharded to after forward, for each unit that is resharded in part."""
    separate_reduce_scatter_group: bool = False
    offloads: bool = False
    """Some unit has its shards or optimizer state, or some call its activations, on the host."""
    uses_nvme: bool = False
    """Some unit has its optimizer state on NVMe."""
    saved_ops: frozenset[tuple[str, ...]] = frozenset()
    """Operations whose outputs are kept where a call is checkpointed selectively."""
    owners: tuple[MatrixOwner, ...] = ()
    """Ranks that update Muon's matrices."""

    @property
    def owner_ranks(self) -> dict[str, int]:
        """Rank that updates a matrix, by its full name."""
        return {entry.parameter: entry.rank for entry in self.owners}

    @classmethod
    def of(cls, decisions: Decisions) -> Self:
        """The demands of a plan."""
        partial = (
            partial_ranks(unit.reshard_after_forward, decisions.mesh_of(unit).shard) for unit in decisions.units
        )
        return cls(
            meshes=decisions.meshes[1:],
            partial_reshards=tuple(ranks for ranks in partial if ranks),
            separate_reduce_scatter_group=decisions.runtime.separate_reduce_scatter_group,
            offloads=any(
                {unit.parameter_tier, unit.optimizer_tier} != {StateTier.DEVICE} for unit in decisions.units
            )
            or any(entry.policy is ActivationPolicy.OFFLOAD for entry in decisions.activations),
            uses_nvme=any(unit.optimizer_tier is StateTier.NVME for unit in decisions.units),
            saved_ops=frozenset(tuple(sorted(entry.saved_ops)) for entry in decisions.activations),
            owners=decisions.owners,
        )


def partial_ranks(reshard_after_forward: bool | int | None, shard: int) -> int | None:
    """Ranks that a unit is resharded to, where that is neither one (False to FSDP2) nor all (True)."""
    if reshard_after_forward is None or isinstance(reshard_after_forward, bool):
        return None
    return None if reshard_after_forward in (1, shard) else reshard_after_forward
