"""What may happen to a cluster, as changes of its description."""

from typing import Annotated, Literal

from pydantic import Field

from planner.catalog.links import link as link_sheet
from planner.schema import ClusterDescription, DeviceSheet, InvalidDocument, LinkSheet, NodeGroup, Profile
from planner.schema.base import Name, Part, Positive

Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Group = Annotated[int, Field(strict=True, ge=0, le=63)]
LinkName = Literal["inter_node", "rail", "intra_node"]


class NodesLost(Part):
    """Nodes are gone; a group without nodes is left out."""

    change: Literal["nodes_lost"]
    group: Group = 0
    """Index in `node_groups`."""
    num_nodes: Positive


class NodesAdded(Part):
    """There are more nodes of a group."""

    change: Literal["nodes_added"]
    group: Group = 0
    num_nodes: Positive


class MemoryChanged(Part):
    """Devices of a group have other usable memory than the data sheet says."""

    change: Literal["memory"]
    group: Group = 0
    device_memory_bytes: Positive


class LinkDegraded(Part):
    """A link has a share of the bandwidth that it has now."""

    change: Literal["link_degraded"]
    link: LinkName
    group: Group = 0
    """Of an `intra_node` link."""
    share: Share


class LinkReplaced(Part):
    """A link is another one."""

    change: Literal["link"]
    link: LinkName
    group: Group = 0
    to: Name | LinkSheet


class DeviceReplaced(Part):
    """Nodes of a group have other devices."""

    change: Literal["device"]
    group: Group = 0
    device: Name | DeviceSheet


Change = Annotated[
    NodesLost | NodesAdded | MemoryChanged | LinkDegraded | LinkReplaced | DeviceReplaced,
    Field(discriminator="change"),
]


def apply_changes(cluster: ClusterDescription, changes: tuple[Change, ...]) -> ClusterDescription:
    """The description after changes, one after the other. Groups keep their indices until the last of them.

    Raises:
        InvalidDocument: a change names a group or link that is not there, or leaves no nodes.
        UnknownName: a degraded link is named and the catalog does not know it.
    """
    groups: list[NodeGroup | None] = list(cluster.node_groups)
    links: dict[str, Name | LinkSheet | None] = {"inter_node": cluster.inter_node, "rail": cluster.rail}
    for index, change in enumerate(changes):
        place = f"changes[{index}]"
        if isinstance(change, LinkDegraded | LinkReplaced) and change.link != "intra_node":
            links[change.link] = _link(links[change.link], change, place)
            continue
        group = groups[change.group] if change.group < len(groups) else None
        if group is None:
            raise _invalid(f"{place}.group", f"the cluster has no node group {change.group}")
        groups[change.group] = _changed(group, change, place)
    left = tuple(group for group in groups if group is not None)
    if not left:
        raise _invalid("changes", "no nodes are left; a cluster without nodes can plan nothing")
    return ClusterDescription.from_object(
        cluster.model_copy(update={"node_groups": left, **links}).model_dump(mode="json"),
        source="the changed cluster",
    )


def _changed(group: NodeGroup, change: Change, place: str) -> NodeGroup | None:
    match change:
        case NodesLost(num_nodes=lost) if lost > group.num_nodes:
            raise _invalid(f"{place}.num_nodes", f"the group has {group.num_nodes} nodes; it cannot lose {lost}")
        case NodesLost(num_nodes=lost) if lost == group.num_nodes:
            return None
        case NodesLost(num_nodes=lost):
            update: dict[str, object] = {"num_nodes": group.num_nodes - lost}
        case NodesAdded(num_nodes=added):
            update = {"num_nodes": group.num_nodes + added}
        case MemoryChanged(device_memory_bytes=size):
            update = {"device_memory_bytes": size}
        case DeviceReplaced(device=device):
            update = {"device": device, "device_memory_bytes": None}
        case _:
            update = {"intra_node": _link(group.intra_node, change, place)}
    return group.model_copy(update=update)


def _link(now: Name | LinkSheet | None, change: LinkDegraded | LinkReplaced, place: str) -> Name | LinkSheet:
    if isinstance(change, LinkReplaced):
        return change.to
    if now is None:
        raise _invalid(f"{place}.link", f"the cluster has no {change.link} link")
    sheet = link_sheet(now) if isinstance(now, str) else now
    rate = max(1, int(sheet.bytes_per_s * change.share))
    return sheet.model_copy(update={"bytes_per_s": rate, "name": f"{sheet.name} at {change.share:.0%}"[:200]})


def profile_after(
    profile: Profile | None, before: ClusterDescription, after: ClusterDescription
) -> tuple[Profile | None, str]:
    """What of a profile still holds on a changed cluster, and in words what does not.

    Nothing that was measured on other devices holds. On other links, times of collectives do not.
    """
    if profile is None:
        return None, ""
    if _devices(before) != _devices(after):
        return None, "the profile was measured on other devices; data sheets were used instead"
    if profile.collectives and _links(before) != _links(after):
        without = profile.model_copy(update={"collectives": ()})
        return without, "collectives were measured on other links; data sheets were used for them instead"
    return profile, ""


def _devices(cluster: ClusterDescription) -> set[str | DeviceSheet]:
    return {str(group.device) for group in cluster.node_groups}


def _links(cluster: ClusterDescription) -> tuple[object, ...]:
    return (cluster.inter_node, cluster.rail, {str(group.intra_node) for group in cluster.node_groups})


def _invalid(path: str, message: str) -> InvalidDocument:
    return InvalidDocument(f"{path}: {message}", problems=((path, message),))
