"""What revisions of clusters and regenerations look like from outside."""

from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from api.http.dependencies import timestamp
from api.service.regenerations.clusters import CurrentCluster, Preview
from api.service.regenerations.views import ItemView, RegenerationView
from planner.catalog.devices import device, device_names
from planner.schema import NodeGroup
from profiles_db.tables import (
    ClusterRevisionRow,
    ItemState,
    RegenerationState,
    Review,
    Verdict,
)

MAX_SHOWN = 200


class CurrentClusterView(BaseModel):
    """A cluster as it is now."""

    name: str
    cluster: str
    """Hash of its description."""
    revision: int
    """0 for a cluster that was never changed."""
    num_nodes: int
    num_devices: int
    devices: list[str]
    """Kinds of devices, by name."""
    device_memory_bytes: int
    """Of all devices together, before what is reserved; without those that the catalog does not know."""
    num_plans: int
    links: dict[str, str]

    @classmethod
    def of(cls, found: CurrentCluster) -> "CurrentClusterView":
        """Show a cluster."""
        groups = found.cluster.node_groups
        path = f"/v1/clusters/{quote(found.cluster.name, safe='')}"
        return cls(
            name=found.cluster.name,
            cluster=found.cluster_hash,
            revision=found.revision,
            num_nodes=found.cluster.num_nodes,
            num_devices=found.cluster.num_devices,
            devices=list(dict.fromkeys(device_name(group) for group in groups)),
            device_memory_bytes=sum(
                group.num_nodes * group.devices_per_node * (memory_of(group) or 0) for group in groups
            ),
            num_plans=found.num_plans,
            links={
                "self": f"{path}/current",
                "cluster": f"/v1/clusters/{found.cluster_hash}",
                "revisions": f"{path}/revisions",
            },
        )


class CurrentClusterPage(BaseModel):
    """Clusters by name; `next` is the cursor of the next page."""

    items: list[CurrentClusterView]
    next: str | None


def device_name(group: NodeGroup) -> str:
    """The kind of the devices of a group."""
    return group.device if isinstance(group.device, str) else group.device.name


def memory_of(group: NodeGroup) -> int | None:
    """Memory (bytes) of a device of a group; None where it is of a kind that the catalog does not know.

    Clusters are stored as they are described; one that cannot be planned for must not take the lists with it.
    """
    if group.device_memory_bytes is not None:
        return group.device_memory_bytes
    if not isinstance(group.device, str):
        return group.device.memory_bytes
    return device(group.device).memory_bytes if group.device in device_names() else None


class ClusterRevision(BaseModel):
    """What a cluster was from a moment on."""

    revision: int
    cluster: str
    changes: list[str]
    why: str
    created_by: str
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, row: ClusterRevisionRow) -> "ClusterRevision":
        """Show a row."""
        return cls(
            revision=row.revision,
            cluster=row.cluster_hash,
            changes=row.changes,
            why=row.why,
            created_by=row.created_by,
            created_at=timestamp(row.created_at_us),
            links={"cluster": f"/v1/clusters/{row.cluster_hash}"},
        )


class ClusterRevisionPage(BaseModel):
    """Revisions, newest first; `next` is the cursor of the next page."""

    items: list[ClusterRevision]
    next: str | None


class AffectedPlan(BaseModel):
    """A plan that would be made again."""

    plan: str
    lineage: str | None
    revision: int | None


class RegenerationPreview(BaseModel):
    """What a dry run finds: nothing was changed."""

    cluster: str
    changes: list[str]
    num_items: int
    items: list[AffectedPlan]
    """The first 200."""

    @classmethod
    def of(cls, found: Preview) -> "RegenerationPreview":
        """Show a preview."""
        return cls(
            cluster=found.cluster_hash,
            changes=found.changes,
            num_items=len(found.affected),
            items=[
                AffectedPlan(plan=one.plan_id, lineage=one.lineage_name, revision=one.revision)
                for one in found.affected[:MAX_SHOWN]
            ],
        )


class Regeneration(BaseModel):
    """Plans that are made again because a cluster changed, and how far that is."""

    regeneration_id: str
    cluster: str
    cluster_revision: int
    state: RegenerationState
    policy: dict[str, Any]
    num_items: int
    items: dict[ItemState, int]
    verdicts: dict[Verdict, int]
    reviews: dict[Review, int]
    webhook: str
    created_by: str
    created_at: str
    finished_at: str | None
    links: dict[str, str]

    @classmethod
    def of(cls, view: RegenerationView) -> "Regeneration":
        """Show a regeneration."""
        row, counts = view.row, view.counts
        link = f"/v1/regenerations/{row.regeneration_id}"
        return cls(
            regeneration_id=row.regeneration_id,
            cluster=row.cluster_name,
            cluster_revision=row.cluster_revision,
            state=RegenerationState(row.state),
            policy=row.policy,
            num_items=row.num_items,
            items={state: counts["state"].get(state, 0) for state in ItemState},
            verdicts={verdict: counts["verdict"].get(verdict, 0) for verdict in Verdict},
            reviews={review: counts["review"].get(review, 0) for review in Review},
            webhook=row.notice,
            created_by=row.created_by,
            created_at=timestamp(row.created_at_us),
            finished_at=None if row.finished_at_us is None else timestamp(row.finished_at_us),
            links={
                "self": link,
                "items": f"{link}/items",
                "cluster_revisions": f"/v1/clusters/{quote(row.cluster_name, safe='')}/revisions",
            },
        )


class RegenerationPage(BaseModel):
    """Regenerations, newest first; `next` is the cursor of the next page."""

    items: list[Regeneration]
    next: str | None


class RegenerationItem(BaseModel):
    """One plan that is made again, and what came of it."""

    number: int
    state: ItemState
    lineage: str | None
    """Its name; the link has its identity."""
    old_revision: int | None
    new_revision: int | None
    old_plan: str
    new_plan: str | None
    verdict: Verdict | None
    change: float | None
    """Of what is minimised: new over old, less one."""
    reasons: list[str]
    review: Review
    reviewed_by: str | None
    links: dict[str, str]

    @classmethod
    def of(cls, view: ItemView) -> "RegenerationItem":
        """Show an item."""
        row = view.row
        links = {"old_plan": f"/v1/plans/{row.old_plan_id}"}
        if row.new_plan_id is not None:
            links["new_plan"] = f"/v1/plans/{row.new_plan_id}"
        if row.job_id is not None:
            links["job"] = f"/v1/jobs/{row.job_id}"
        if row.lineage_id is not None:
            links["lineage"] = f"/v1/lineages/{row.lineage_id}"
        return cls(
            number=row.number,
            state=ItemState(row.state),
            lineage=view.lineage_name,
            old_revision=row.old_revision,
            new_revision=row.new_revision,
            old_plan=row.old_plan_id,
            new_plan=row.new_plan_id,
            verdict=None if row.verdict is None else Verdict(row.verdict),
            change=row.change,
            reasons=row.reasons,
            review=Review(row.review),
            reviewed_by=row.reviewed_by,
            links=links,
        )


class RegenerationItemPage(BaseModel):
    """Items in their order; `next` is the cursor of the next page."""

    items: list[RegenerationItem]
    next: str | None
