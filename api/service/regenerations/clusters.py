"""Change a cluster: store what it is from now on, and begin to make again what rests on it."""

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from sqlalchemy.orm import Session

from api.service.callers import Caller
from api.service.differences import document_changes
from api.service.errors import ChangedMeanwhile, NotFound, UnknownReference
from api.service.lineages import MAX_WHY
from api.service.parsing import parse_document, parse_json
from api.service.regenerations.changes import Change, apply_changes
from api.service.regenerations.verdicts import Policy
from api.service.regenerations.views import RegenerationView, view_of
from planner.schema import ClusterDescription, InvalidDocument
from planner.schema.base import Document, Sha256
from profiles_db import cluster_revisions, documents, regenerations
from profiles_db.cluster_revisions import Affected
from profiles_db.engine import Database
from profiles_db.pages import Cursor, Page
from profiles_db.tables import (
    ClusterRevisionRow,
    DocumentKind,
    Notice,
    RegenerationRow,
    RegenerationState,
    now_us,
)


class NewClusterRevision(Document):
    """What a cluster is from now on: a whole description, or what changed."""

    kind: ClassVar[str] = "cluster_revision"

    cluster: ClusterDescription | Sha256 | None = None
    """The description, or the hash of a stored one; its name becomes that of the address."""
    changes: Annotated[tuple[Change, ...], Field(max_length=64)] = ()
    """Of the description that holds now; either these or `cluster`."""
    base: Sha256 | None = None
    """Description that the caller believes to hold now; refused when another one does."""
    scope: Literal["all", "lineages"] = "all"
    """Plans to make again: all that rest on the cluster, or those that are active in a lineage."""
    policy: Policy = Policy()
    why: Annotated[str, Field(max_length=MAX_WHY)] = ""
    dry_run: bool = False
    """Say what would be made again, and change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a revision of a cluster would do."""

    cluster_hash: str
    changes: list[str]
    affected: list[Affected]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCluster:
    """A cluster as it is now."""

    cluster: ClusterDescription
    cluster_hash: str
    revision: int
    """0 for one that was never changed."""
    num_plans: int
    """That rest on any description of it."""


class ClusterRevisionService:
    """Revisions of clusters of a tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def revise(self, caller: Caller, name: str, body: bytes) -> RegenerationView | Preview:
        """Store what a cluster is from now on, and begin to make its plans again.

        Raises:
            InvalidJson, InvalidDocument, UnknownName: the body, or the cluster that it leads to, is none.
            NotFound: no cluster of this name is stored.
            UnknownReference: it names a cluster that is not stored.
            ChangedMeanwhile: the cluster is no longer what the caller believes.
        """
        wanted = parse_document(NewClusterRevision, parse_json(body))
        if (wanted.cluster is None) == (not wanted.changes):
            message = "give either cluster or changes"
            raise InvalidDocument(f"the body is not a valid cluster_revision: {message}", problems=(("", message),))
        with self._database.read() as session:
            base = self._base(session, caller.tenant, name, wanted)
            cluster = self._wanted(session, caller.tenant, name, base, wanted)
        changes = document_changes(_json(base), _json(cluster))
        if not changes:
            message = "the cluster is that already; nothing changes"
            raise InvalidDocument(message, problems=(("", message),))
        if wanted.dry_run:
            return self._preview(caller.tenant, name, base, cluster, changes, wanted)
        return self._begin(caller, name, base, cluster, changes, wanted)

    def _base(self, session: Session, tenant: str, name: str, wanted: NewClusterRevision) -> ClusterDescription:
        now = _current(session, tenant, name)
        if now is None:
            raise NotFound("cluster", name)
        if wanted.base not in (None, now):
            raise ChangedMeanwhile(f"cluster {name} is {now} now, not {wanted.base}; look at it again")
        return _load(session, tenant, now)

    def _wanted(
        self, session: Session, tenant: str, name: str, base: ClusterDescription, wanted: NewClusterRevision
    ) -> ClusterDescription:
        match wanted.cluster:
            case None:
                return apply_changes(base, wanted.changes)
            case ClusterDescription() as cluster:
                return cluster.model_copy(update={"name": name})
            case content_hash:
                if documents.get_bytes(session, tenant, DocumentKind.CLUSTER, content_hash) is None:
                    raise UnknownReference("cluster", content_hash)
                return _load(session, tenant, content_hash).model_copy(update={"name": name})

    def _preview(
        self,
        tenant: str,
        name: str,
        base: ClusterDescription,
        cluster: ClusterDescription,
        changes: list[str],
        wanted: NewClusterRevision,
    ) -> Preview:
        new_hash = cluster.content_hash()
        with self._database.read() as session:
            affected = _affected(session, tenant, name, base.content_hash(), new_hash, wanted)
        return Preview(cluster_hash=new_hash, changes=changes, affected=affected)

    def _begin(
        self,
        caller: Caller,
        name: str,
        base: ClusterDescription,
        cluster: ClusterDescription,
        changes: list[str],
        wanted: NewClusterRevision,
    ) -> RegenerationView:
        tenant = caller.tenant
        with self._database.write() as session:
            revision = _store(session, caller, name, base, cluster, changes, wanted.why)
            affected = _affected(session, tenant, name, base.content_hash(), cluster.content_hash(), wanted)
            row = RegenerationRow(
                tenant=tenant,
                regeneration_id=f"reg_{secrets.token_hex(12)}",
                cluster_name=name,
                cluster_revision=revision,
                state=RegenerationState.RUNNING,
                policy=wanted.policy.model_dump(mode="json"),
                num_items=len(affected),
                created_by=caller.submitted_by,
                created_at_us=now_us(),
                lease_holder="",
                lease_until_us=0,
                notice=Notice.NONE,
                notice_attempts=0,
                notice_at_us=0,
            )
            items = [
                {"lineage_id": one.lineage_id, "old_revision": one.revision, "old_plan_id": one.plan_id}
                for one in affected
            ]
            regenerations.add(session, row, items)
            return view_of(session, row)

    def revisions(self, tenant: str, name: str, *, cursor: str | None, limit: int) -> Page[ClusterRevisionRow]:
        """Revisions of a cluster, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        with self._database.read() as session:
            return cluster_revisions.page(session, tenant, name, cursor=Cursor.of(cursor), limit=limit)

    def current(self, tenant: str, name: str) -> CurrentCluster:
        """A cluster as it is now.

        Raises:
            NotFound: no cluster of this name is stored.
        """
        with self._database.read() as session:
            found = _now(session, tenant, [name])
        if not found:
            raise NotFound("cluster", name)
        return found[0]

    def currents(self, tenant: str, *, after: str | None, limit: int) -> Page[CurrentCluster]:
        """Clusters as they are now, by name; the cursor is the last name that was shown."""
        with self._database.read() as session:
            names = documents.names_of_kind(
                session, tenant, DocumentKind.CLUSTER, after=after or "", limit=limit + 1
            )
            items = _now(session, tenant, names[:limit])
        return Page(items=items, next=names[limit - 1] if len(names) > limit else None)


def _now(session: Session, tenant: str, names: list[str]) -> list[CurrentCluster]:
    """Clusters of these names, in their order, by a few queries however many there are; without unknown ones."""
    newest = cluster_revisions.newest_of(session, tenant, names)
    hashes = cluster_revisions.newest_documents(session, tenant, names)
    hashes |= {name: row.cluster_hash for name, row in newest.items()}
    bodies = documents.bodies(session, tenant, hashes.values())
    nums_plans = cluster_revisions.nums_plans(session, tenant, names)
    return [
        CurrentCluster(
            cluster=_read(bodies[hashes[name]], hashes[name]),
            cluster_hash=hashes[name],
            revision=newest[name].revision if name in newest else 0,
            num_plans=nums_plans.get(name, 0),
        )
        for name in names
        if name in hashes
    ]


def _store(
    session: Session,
    caller: Caller,
    name: str,
    base: ClusterDescription,
    cluster: ClusterDescription,
    changes: list[str],
    why: str,
) -> int:
    """Add a revision, after one for what the cluster was where it had none; returns its number.

    The number is taken before the base is compared: who comes in between changes the base, who comes later has the
    number.

    Raises:
        ChangedMeanwhile: the cluster is not the base any more.
    """
    newest = cluster_revisions.newest(session, caller.tenant, name)
    if _current(session, caller.tenant, name) != base.content_hash():
        raise _overtaken(name)
    number = 0 if newest is None else newest.revision
    revisions = [(cluster, changes, why)]
    if newest is None:
        revisions.insert(0, (base, [], "what it was before its first revision"))
    for description, words, reason in revisions:
        number += 1
        stored, _ = documents.put(session, caller.tenant, description)
        if not cluster_revisions.add(
            session,
            caller.tenant,
            name,
            number,
            cluster_hash=stored,
            changes=words,
            why=reason,
            by=caller.submitted_by,
        ):
            raise _overtaken(name)
    return number


def _affected(
    session: Session, tenant: str, name: str, old_hash: str, new_hash: str, wanted: NewClusterRevision
) -> list[Affected]:
    found = list(cluster_revisions.affected_lineages(session, tenant, name, new_hash))
    if wanted.scope == "all":
        found += cluster_revisions.affected_plans(session, tenant, old_hash)
    return found


def _current(session: Session, tenant: str, name: str) -> str | None:
    newest = cluster_revisions.newest(session, tenant, name)
    if newest is not None:
        return newest.cluster_hash
    return cluster_revisions.newest_documents(session, tenant, [name]).get(name)


def _load(session: Session, tenant: str, content_hash: str) -> ClusterDescription:
    body = documents.get_bytes(session, tenant, DocumentKind.CLUSTER, content_hash)
    assert body is not None, "foreign keys keep the clusters of revisions"
    return _read(body, content_hash)


def _read(body: bytes, content_hash: str) -> ClusterDescription:
    return ClusterDescription.from_json(body, source=f"stored cluster {content_hash}")


def _json(cluster: ClusterDescription) -> Any:  # noqa: ANN401 - JSON
    return cluster.model_dump(mode="json")


def _overtaken(name: str) -> ChangedMeanwhile:
    return ChangedMeanwhile(f"cluster {name} was changed by somebody else just now; look at it again")
