"""Lineages: revisions of a plan for one training, and which of them is active."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from sqlalchemy.orm import Session

from api.service.callers import Caller
from api.service.differences import InputChange, Origin, input_changes
from api.service.envelopes import with_envelope
from api.service.errors import (
    ChangedMeanwhile,
    NoActivePlan,
    UnknownReference,
)
from api.service.parsing import parse_document, parse_json
from api.service.revisions import append, move, resolve, revision_of
from api.service.signing import Signer
from planner.explain import Difference, diff
from planner.schema import Workload
from planner.schema.base import Document, Positive, Sha256
from profiles_db import lineages, plans, requests
from profiles_db.engine import Database
from profiles_db.pages import Cursor, Page
from profiles_db.tables import ActivationRow, Cause, LineageRow, PlanRow, RevisionRow

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MAX_WHY = 1000
_FREE_IN_A_LINEAGE = ("micro_batch", "torch_version", "atoms", "compile")


class NewRevision(Document):
    """A plan to add to a lineage; the first one makes the lineage."""

    kind: ClassVar[str] = "revision"

    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    """Of the lineage, e.g. the job's: letters, digits, dots, hyphens, underscores."""
    plan: Sha256
    """Identity of a stored plan."""
    why: Annotated[str, Field(max_length=MAX_WHY)] = ""
    """For people, besides what is found to differ from the revision before."""


class Activation(Document):
    """Which revision shall be active."""

    kind: ClassVar[str] = "activation"

    revision: Positive
    why: Annotated[str, Field(max_length=MAX_WHY)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageView:
    """A lineage with its newest and its active revision."""

    row: LineageRow
    newest: RevisionRow
    active: RevisionRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    """Which plan a lineage hands out, and what its envelope says."""

    plan_id: str
    lineage: str
    revision: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionDifference:
    """Two revisions side by side."""

    before: int
    after: int
    inputs: list[InputChange]
    differences: tuple[Difference, ...]


def training_hash(workload: Workload) -> str:
    """Identity of what is trained: plans that differ in the rest of the workload can take each other's place.

    The rest is what a trainer may change without changing what it computes: how many sequences a micro-batch has,
    the release of torch, what shards must not cut, whether blocks are compiled.
    """
    defaults = {name: Workload.model_fields[name].default for name in _FREE_IN_A_LINEAGE}
    return workload.model_copy(update={**defaults, "micro_batch": 1}).content_hash()


def lineage_id_of(name: str, model_fingerprint: str, training: str) -> str:
    """Identity of a lineage within its tenant."""
    text = f"{name}\n{model_fingerprint}\n{training}"
    return f"lin:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


class LineageService:
    """Lineages of a tenant. `reference` is an identity, or the name where only one lineage has it."""

    def __init__(self, database: Database, signer: Signer | None = None) -> None:
        self._database = database
        self._signer = signer

    def add(self, caller: Caller, body: bytes) -> tuple[LineageView, bool]:
        """Add a plan as the newest revision; one that is the newest already adds nothing.

        The first feasible plan of a lineage becomes active: it replaces nothing.

        Raises:
            InvalidJson, InvalidDocument: the body is not a `NewRevision`.
            UnknownReference: the tenant has no such plan.
        """
        new = parse_document(NewRevision, parse_json(body))
        with self._database.read() as session:
            asked = plans.get_body(session, caller.tenant, new.plan)
        if asked is None:
            raise UnknownReference("plan", new.plan, remedy="ask for the plan first: POST /v1/plans")
        with self._database.write() as session:
            plan = plans.get_row(session, caller.tenant, new.plan)
            assert plan is not None, "plans are deleted only where nobody serves"
            lineage = _lineage_for(session, new.name, plan, asked.model_fingerprint)
            newest = lineages.revision(session, lineage, lineage.newest_revision)
            if newest is not None and newest.plan_id == new.plan:
                return _view(session, lineage), False
            append(session, lineage, plan, cause=Cause.REQUESTED, why=new.why, by=caller.submitted_by)
            if lineage.active_revision is None and plan.outcome == "feasible":
                lineages.activate(
                    session,
                    lineage,
                    lineage.newest_revision,
                    why="the first plan that fits",
                    by=caller.submitted_by,
                )
            return _view(session, lineage), True

    def activate(self, caller: Caller, reference: str, version: int, body: bytes) -> LineageView:
        """Make a revision active; rolling back is making an earlier one active.

        Args:
            caller: Who does it; kept in the history.
            reference: Which lineage.
            version: Of the lineage as the caller last saw it.
            body: JSON of an `Activation`.

        Raises:
            InvalidJson, InvalidDocument: the body is not an `Activation`.
            NotFound: no such lineage, or no such revision.
            AmbiguousLineage: several have the name.
            ChangedMeanwhile: the lineage is no longer what the caller saw.
            NotActivatable: the plan of that revision does not fit.
        """
        wanted = parse_document(Activation, parse_json(body))
        with self._database.write() as session:
            found = resolve(session, caller.tenant, reference)
            lineage = lineages.locked(session, caller.tenant, found.lineage_id)
            assert lineage is not None
            if lineage.version != version:
                raise ChangedMeanwhile(
                    f"lineage {lineage.name} was changed since version {version} and has version {lineage.version} "
                    "now; look at it again"
                )
            move(session, lineage, wanted.revision, why=wanted.why, by=caller.submitted_by)
            return _view(session, lineage)

    def get(self, tenant: str, reference: str) -> LineageView:
        """A lineage.

        Raises:
            NotFound, AmbiguousLineage: none, or several.
        """
        with self._database.read() as session:
            return _view(session, resolve(session, tenant, reference))

    def page(
        self, tenant: str, *, name: str | None, model: str | None, cursor: str | None, limit: int
    ) -> Page[LineageView]:
        """Lineages, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        after = Cursor.of(cursor)
        with self._database.read() as session:
            found = lineages.page(session, tenant, name=name, model_fingerprint=model, cursor=after, limit=limit)
            return Page(items=[_view(session, row) for row in found.items], next=found.next)

    def revisions(self, tenant: str, reference: str, *, cursor: str | None, limit: int) -> Page[RevisionRow]:
        """Revisions, newest first; errors of `get` and `page`."""
        with self._database.read() as session:
            lineage = resolve(session, tenant, reference)
            return lineages.revisions(session, lineage, cursor=Cursor.of(cursor), limit=limit)

    def activations(self, tenant: str, reference: str, *, cursor: str | None, limit: int) -> Page[ActivationRow]:
        """Moves of the active pointer, newest first; errors of `get` and `page`."""
        with self._database.read() as session:
            lineage = resolve(session, tenant, reference)
            return lineages.activations(session, lineage, cursor=Cursor.of(cursor), limit=limit)

    def revision(self, tenant: str, reference: str, number: int) -> RevisionRow:
        """A revision.

        Raises:
            NotFound, AmbiguousLineage: no such lineage or revision, or several lineages.
        """
        with self._database.read() as session:
            return revision_of(session, resolve(session, tenant, reference), number)

    def active(self, tenant: str, reference: str, model: str | None = None) -> ActivePlan:
        """Which plan is active.

        Args:
            tenant: Whose lineages.
            reference: Which one.
            model: Fingerprint of the module that the caller trains, where it knows it.

        Raises:
            NotFound, AmbiguousLineage: no such lineage, or several.
            NoActivePlan: none of its revisions is active.
        """
        with self._database.read() as session:
            lineage = resolve(session, tenant, reference, model)
            revision = lineages.revision(session, lineage, lineage.active_revision)
            if revision is None:
                raise NoActivePlan(f"lineage {lineage.name} has no active plan: none of its revisions fits yet")
        return ActivePlan(
            plan_id=revision.plan_id, lineage=lineage.name, revision=revision.revision, why=revision.why
        )

    def plan_of(self, tenant: str, active: ActivePlan) -> bytes:
        """JSON of the active plan; its envelope names lineage, revision and why there is one."""
        with self._database.read() as session:
            stored = plans.get_bytes(session, tenant, active.plan_id)
        assert stored is not None, "foreign keys keep the plans of revisions"
        told = (active.plan_id, active.lineage, active.revision)
        signature = None if self._signer is None else self._signer.sign(*told)
        return with_envelope(
            stored, lineage=active.lineage, revision=active.revision, why=active.why, signature=signature
        )

    def tag(self, active: ActivePlan) -> str:
        """Names the bytes that `plan_of` gives: another key gives others."""
        tag = f"{active.plan_id}.{active.revision}"
        return tag if self._signer is None else f"{tag}.{self._signer.key_id}"

    def difference(self, tenant: str, reference: str, before: int, after: int) -> RevisionDifference:
        """What differs between two revisions, in words and numbers; errors of `revision`."""
        with self._database.read() as session:
            lineage = resolve(session, tenant, reference)
            pair = [revision_of(session, lineage, number).plan_id for number in (before, after)]
            rows = [plans.get_row(session, tenant, plan_id) for plan_id in pair]
            old, new = (plans.get_body(session, tenant, plan_id) for plan_id in pair)
            assert rows[0] is not None
            assert rows[1] is not None
            assert old is not None
            assert new is not None
            inputs = input_changes(session, tenant, Origin.of_row(rows[0]), Origin.of_row(rows[1]))
        return RevisionDifference(before=before, after=after, inputs=inputs, differences=diff(old, new))


def _lineage_for(session: Session, name: str, plan: PlanRow, fingerprint: str) -> LineageRow:
    _, fields = requests.fields(session, plan.tenant, plan.request_hash)
    training = training_hash(Workload.from_object(fields["workload"]))
    return lineages.open_lineage(
        session,
        plan.tenant,
        lineage_id_of(name, fingerprint, training),
        name=name,
        model_fingerprint=fingerprint,
        training_hash=training,
    )


def _view(session: Session, row: LineageRow) -> LineageView:
    newest = lineages.revision(session, row, row.newest_revision)
    assert newest is not None, "a lineage is made with its first revision"
    return LineageView(row=row, newest=newest, active=lineages.revision(session, row, row.active_revision))
