"""What lineages look like from outside."""

from pydantic import BaseModel

from api.http.dependencies import timestamp
from api.http.differences import Change
from api.service.lineages import LineageView, RevisionDifference
from profiles_db.tables import ActivationRow, LineageRow, RevisionRow


class Revision(BaseModel):
    """A plan in a lineage, and why it is there."""

    revision: int
    plan: str
    cause: str
    changed: list[str]
    """Which inputs differ from those of the revision before."""
    why: str
    created_by: str
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, row: RevisionRow) -> "Revision":
        """Show a row."""
        return cls(
            revision=row.revision,
            plan=row.plan_id,
            cause=row.cause,
            changed=row.changed,
            why=row.why,
            created_by=row.created_by,
            created_at=timestamp(row.created_at_us),
            links={
                "self": f"{lineage_link(row)}/revisions/{row.revision}",
                "plan": f"/v1/plans/{row.plan_id}",
            },
        )


class Lineage(BaseModel):
    """Plans that can take each other's place for one training of one module."""

    lineage_id: str
    name: str
    model_fingerprint: str
    version: int
    """Rises with every change; it is the ETag."""
    num_revisions: int
    newest: Revision
    active: Revision | None
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, view: LineageView) -> "Lineage":
        """Show a lineage."""
        row = view.row
        link = lineage_link(row)
        return cls(
            lineage_id=row.lineage_id,
            name=row.name,
            model_fingerprint=row.model_fingerprint,
            version=row.version,
            num_revisions=row.newest_revision,
            newest=Revision.of(view.newest),
            active=None if view.active is None else Revision.of(view.active),
            created_at=timestamp(row.created_at_us),
            links={
                "self": link,
                **{name: f"{link}/{name}" for name in ("active", "revisions", "activations", "difference")},
            },
        )


class LineagePage(BaseModel):
    """Lineages, newest first; `next` is the cursor of the next page."""

    items: list[Lineage]
    next: str | None


class RevisionPage(BaseModel):
    """Revisions, newest first; `next` is the cursor of the next page."""

    items: list[Revision]
    next: str | None


class Activated(BaseModel):
    """A move of the active pointer."""

    number: int
    revision: int
    previous_revision: int | None
    why: str
    activated_by: str
    at: str

    @classmethod
    def of(cls, row: ActivationRow) -> "Activated":
        """Show a row."""
        return cls(
            number=row.number,
            revision=row.revision,
            previous_revision=row.previous_revision,
            why=row.why,
            activated_by=row.activated_by,
            at=timestamp(row.created_at_us),
        )


class ActivationPage(BaseModel):
    """Moves of the active pointer, newest first; `next` is the cursor of the next page."""

    items: list[Activated]
    next: str | None


class RevisionsCompared(BaseModel):
    """Two revisions side by side: what was asked differently, and what came of it."""

    before: int
    after: int
    inputs: dict[str, str]
    """By kind of input: the change in words."""
    changes: list[Change]

    @classmethod
    def of(cls, found: RevisionDifference) -> "RevisionsCompared":
        """Show a difference."""
        return cls(
            before=found.before,
            after=found.after,
            inputs={change.kind: change.words for change in found.inputs},
            changes=Change.all_of(found.differences),
        )


def lineage_link(row: LineageRow | RevisionRow) -> str:
    """Path of a lineage."""
    return f"/v1/lineages/{row.lineage_id}"
