"""Find a lineage, add a revision to it, point it at one: steps of a transaction, whoever takes them."""

import re

from sqlalchemy.orm import Session

from api.service.differences import Origin, input_changes
from api.service.errors import AmbiguousLineage, NotActivatable, NotFound
from profiles_db import lineages, plans
from profiles_db.tables import Cause, LineageRow, PlanRow, RevisionRow

ID_PATTERN = r"lin:[0-9a-f]{24}"
"""Identity of a lineage."""


def resolve(session: Session, tenant: str, reference: str, model: str | None = None) -> LineageRow:
    """The lineage of an identity or a name.

    Raises:
        NotFound, AmbiguousLineage: none, or several.
    """
    if re.fullmatch(ID_PATTERN, reference):
        row = lineages.get(session, tenant, reference)
        found = [row] if row is not None and model in (None, row.model_fingerprint) else []
    else:
        found = list(lineages.named(session, tenant, reference, model))
    if not found:
        raise NotFound("lineage", reference if model is None else f"{reference} of model {model}")
    if len(found) > 1:
        raise AmbiguousLineage(
            f"{len(found)} lineages are called {reference}: {', '.join(row.lineage_id for row in found[:10])}; "
            "name one by its identity, or say which model"
        )
    return found[0]


def append(session: Session, lineage: LineageRow, plan: PlanRow, *, cause: Cause, why: str, by: str) -> RevisionRow:
    """Add a plan to a locked lineage, with what its inputs have changed since the revision before."""
    newest = lineages.revision(session, lineage, lineage.newest_revision)
    before = None if newest is None else plans.get_row(session, lineage.tenant, newest.plan_id)
    changes = (
        [] if before is None else input_changes(session, plan.tenant, Origin.of_row(before), Origin.of_row(plan))
    )
    words = "the first revision" if before is None else "; ".join(change.words for change in changes)
    return lineages.add_revision(
        session,
        lineage,
        plan.plan_id,
        cause=cause,
        changed=[change.kind for change in changes],
        why=f"{why}; {words}" if why and words else why or words,
        by=by,
    )


def move(session: Session, lineage: LineageRow, number: int, *, why: str, by: str) -> None:
    """Make a revision of a locked lineage the active one; it may be that already.

    Raises:
        NotFound: no such revision.
        NotActivatable: its plan does not fit.
    """
    revision = revision_of(session, lineage, number)
    plan = plans.get_row(session, lineage.tenant, revision.plan_id)
    assert plan is not None, "foreign keys keep the plans of revisions"
    if plan.outcome != "feasible":
        raise NotActivatable(f"revision {number} of {lineage.name} is infeasible; nothing could be trained with it")
    if lineage.active_revision != number:
        lineages.activate(session, lineage, number, why=why, by=by)


def revision_of(session: Session, lineage: LineageRow, number: int) -> RevisionRow:
    """A revision of a lineage.

    Raises:
        NotFound: no such revision.
    """
    row = lineages.revision(session, lineage, number)
    if row is None:
        raise NotFound("revision", f"{number} of lineage {lineage.name}")
    return row
