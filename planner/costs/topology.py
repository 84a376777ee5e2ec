"""Where the axes of a mesh lie: which nodes a group spans, and over which links it talks.

Ranks are numbered node by node. The mesh `(replicate, shard)` is row-major, so a shard group is a run of `shard`
consecutive ranks, and a replicate group takes every `shard`-th rank.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

from planner.catalog import device, link
from planner.costs.rates import exact_fraction
from planner.schema import (
    ClusterDescription,
    DeviceSheet,
    InconsistentRequest,
    LinkSheet,
    MeshPlan,
    NodeGroup,
    UnsupportedField,
)

Axis = Literal["shard", "replicate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The groups of one mesh axis; they differ at most in where they begin, and this is the worst of them."""

    num_ranks: int
    num_nodes: int
    intra: LinkSheet
    """Link between devices of one node."""
    inter: LinkSheet | None
    """Link between nodes, after the share that other jobs leave; None when no group crosses nodes."""
    is_even: bool = True
    """Every node holds equally many ranks of every group, so that a hierarchical collective can use all of them."""

    @property
    def crosses_nodes(self) -> bool:
        """Whether some group has ranks on several nodes."""
        return self.num_nodes > 1

    @property
    def link(self) -> LinkSheet:
        """The outermost link that the group uses."""
        return self.inter if self.inter is not None else self.intra

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one group on each of its nodes; only for even groups."""
        assert self.is_even
        return self.num_ranks // self.num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A cluster of equal nodes with catalog names resolved."""

    device: DeviceSheet
    device_memory_bytes: int
    num_nodes: int
    devices_per_node: int
    intra: LinkSheet
    inter: LinkSheet | None
    rail: LinkSheet | None

    @classmethod
    def of(cls, cluster: ClusterDescription) -> Self:
        """Resolve names.

        Raises:
            UnknownName: a device or link that the catalog does not have.
            UnsupportedField: node groups that differ in device, size, memory or link.
            InconsistentRequest: several nodes without a link between them, or no bandwidth left.
        """
        first = _nodes(cluster)
        if cluster.num_nodes > 1 and cluster.inter_node is None:
            raise InconsistentRequest(
                f"cluster.inter_node is missing, but cluster {cluster.name!r} has {cluster.num_nodes} nodes; "
                "name the link between them, e.g. 'ib-ndr-400', or give a link sheet"
            )
        sheet = device(first.device) if isinstance(first.device, str) else first.device
        return cls(
            device=sheet,
            device_memory_bytes=first.device_memory_bytes or sheet.memory_bytes,
            num_nodes=cluster.num_nodes,
            devices_per_node=first.devices_per_node,
            intra=_resolved(first.intra_node),
            inter=_shared(cluster, cluster.inter_node),
            rail=_shared(cluster, cluster.rail),
        )

    def group(self, mesh: MeshPlan, axis: Axis) -> Group:
        """Groups of one axis of the mesh.

        Raises:
            InconsistentRequest: the mesh has more ranks than the cluster has devices.
        """
        num_devices = self.num_nodes * self.devices_per_node
        if mesh.num_ranks > num_devices:
            raise InconsistentRequest(
                f"mesh ({mesh.replicate}, {mesh.shard}) needs {mesh.num_ranks} ranks, but the cluster has "
                f"{num_devices} devices; use a smaller mesh or a larger cluster"
            )
        span = _span(mesh.replicate, mesh.shard, self.devices_per_node, axis)
        return Group(
            num_ranks=mesh.shard if axis == "shard" else mesh.replicate,
            num_nodes=span.num_nodes,
            intra=self.intra,
            inter=self._between_nodes(span) if span.num_nodes > 1 else None,
            is_even=span.is_even,
        )

    def neighbours(self, mesh: MeshPlan, num_ranks: int) -> Group:
        """Groups of `num_ranks` consecutive ranks of the shard axis, which partial resharding gathers over.

        FSDP2 reshapes the ranks of the whole mesh, replicas included, to rows of `num_ranks` (torch 2.13,
        `_get_post_forward_mesh_info`).

        Raises:
            InconsistentRequest: the shard degree is not a multiple of `num_ranks`, or the mesh is too large.
        """
        if num_ranks < 1 or mesh.shard % num_ranks:
            raise InconsistentRequest(
                f"units cannot be resharded to {num_ranks} ranks: the shard degree is {mesh.shard}; "
                "set reshard_after_forward to a divisor of it"
            )
        rows = MeshPlan(replicate=mesh.num_ranks // num_ranks, shard=num_ranks)
        return self.group(rows, "shard")

    def _between_nodes(self, span: "_Span") -> LinkSheet | None:
        return self.rail if self.rail is not None and span.is_aligned else self.inter


def axis_group(cluster: ClusterDescription, mesh: MeshPlan, axis: Axis) -> Group:
    """Groups of one axis of a mesh on a cluster; errors as in `Topology.of` and `Topology.group`."""
    return Topology.of(cluster).group(mesh, axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    num_nodes: int
    is_even: bool
    is_aligned: bool
    """Even, and with the same device indices on each node: its ring between nodes stays on rails."""


@lru_cache(maxsize=1024)
def _span(replicate: int, shard: int, devices_per_node: int, axis: Axis) -> _Span:
    num_ranks = replicate * shard
    groups = (
        [range(start, start + shard) for start in range(0, num_ranks, shard)]
        if axis == "shard"
        else [range(start, num_ranks, shard) for start in range(shard)]
    )
    num_nodes: set[int] = set()
    sizes: set[int] = set()
    is_aligned = True
    for group in groups:
        indices: defaultdict[int, list[int]] = defaultdict(list)
        for rank in group:
            indices[rank // devices_per_node].append(rank % devices_per_node)
        num_nodes.add(len(indices))
        sizes.update(map(len, indices.values()))
        is_aligned &= len(set(map(tuple, indices.values()))) == 1
    is_even = len(num_nodes) == len(sizes) == 1
    return _Span(num_nodes=max(num_nodes), is_even=is_even, is_aligned=is_even and is_aligned)


def _nodes(cluster: ClusterDescription) -> NodeGroup:
    first = cluster.node_groups[0]
    for index, group in enumerate(cluster.node_groups[1:], start=1):
        differing = [
            field
            for field in ("device", "devices_per_node", "device_memory_bytes", "intra_node")
            if getattr(group, field) != getattr(first, field)
        ]
        if differing:
            raise UnsupportedField(
                f"cluster.node_groups[{index}].{differing[0]}",
                "it differs from node_groups[0]; plan for the equal nodes alone",
            )
    return first


def _resolved(value: str | LinkSheet) -> LinkSheet:
    return link(value) if isinstance(value, str) else value


def _shared(cluster: ClusterDescription, value: str | LinkSheet | None) -> LinkSheet | None:
    if value is None:
        return None
    sheet = _resolved(value)
    share = exact_fraction(cluster.tenancy.bandwidth_share)
    if share == 1:
        return sheet
    bytes_per_s = int(sheet.bytes_per_s * share)
    if bytes_per_s == 0:
        raise InconsistentRequest(
            f"cluster.tenancy.bandwidth_share leaves nothing of link {sheet.name!r}; give a share above 0"
        )
    return sheet.model_copy(update={"bytes_per_s": bytes_per_s})
