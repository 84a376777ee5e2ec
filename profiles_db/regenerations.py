"""Regenerations and their items. A change of an item names the state that it leaves: one process makes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, insert, or_, select, update
from sqlalchemy.orm import Session

from profiles_db.change import num_changed
from profiles_db.pages import Cursor, Page, lowest_first, newest_first, page_of, page_of_numbers
from profiles_db.tables import (
    ItemState,
    JobRow,
    JobState,
    Notice,
    RegenerationItemRow,
    RegenerationRow,
    RegenerationState,
    Review,
    Verdict,
    now_us,
)

OPEN_ITEMS = (ItemState.WAITING, ItemState.SUBMITTED)


def add(session: Session, row: RegenerationRow, items: Sequence[Mapping[str, Any]]) -> None:
    """Store a regeneration with its items; fields of an item that are the same for all are filled in."""
    session.add(row)
    session.flush()
    shared = {
        "tenant": row.tenant,
        "regeneration_id": row.regeneration_id,
        "state": ItemState.WAITING,
        "reasons": [],
        "review": Review.NONE,
        "updated_at_us": now_us(),
    }
    if items:
        numbered = [{**shared, **item, "number": number} for number, item in enumerate(items, start=1)]
        session.execute(insert(RegenerationItemRow), numbered)


def get(session: Session, tenant: str, regeneration_id: str) -> RegenerationRow | None:
    """A regeneration."""
    return session.get(RegenerationRow, (tenant, regeneration_id))


def page(
    session: Session, tenant: str, *, cluster: str | None = None, cursor: Cursor | None = None, limit: int = 50
) -> Page[RegenerationRow]:
    """Regenerations, newest first."""
    query = select(RegenerationRow).where(RegenerationRow.tenant == tenant)
    if cluster is not None:
        query = query.where(RegenerationRow.cluster_name == cluster)
    ordered = newest_first(
        query, RegenerationRow.created_at_us, RegenerationRow.regeneration_id, cursor=cursor, limit=limit
    )
    return page_of(session.scalars(ordered).all(), "regeneration_id", limit=limit)


def any_has_work(session: Session) -> bool:
    """Whether `claim` may find something; a read, so that idle processes do not write."""
    return session.scalar(select(RegenerationRow.state).where(_has_work(now_us())).limit(1)) is not None


def _has_work(now: int) -> ColumnElement[bool]:
    return or_(
        RegenerationRow.state == RegenerationState.RUNNING,
        (RegenerationRow.notice == Notice.WAITING) & (RegenerationRow.notice_at_us <= now),
    )


def claim(session: Session, holder: str, *, lease_us: int) -> RegenerationRow | None:
    """Take one that has something to do and that no living process holds; the longest neglected first."""
    now = now_us()
    is_free = or_(RegenerationRow.lease_holder == holder, RegenerationRow.lease_until_us <= now)
    query = select(RegenerationRow).where(_has_work(now), is_free)
    query = query.order_by(RegenerationRow.lease_until_us).limit(1)
    row = session.scalar(query.with_for_update(skip_locked=True))
    if row is not None:
        row.lease_holder = holder
        row.lease_until_us = now + lease_us
    return row


def release(session: Session, holder: str) -> None:
    """Let others go on with what a process held, without waiting for the end of its lease."""
    session.execute(update(RegenerationRow).where(RegenerationRow.lease_holder == holder).values(lease_until_us=0))


def locked(session: Session, tenant: str, regeneration_id: str) -> RegenerationRow | None:
    """A regeneration that nobody else changes before this transaction ends."""
    return session.get(RegenerationRow, (tenant, regeneration_id), with_for_update=True, populate_existing=True)


def counts(session: Session, row: RegenerationRow) -> dict[str, dict[str, int]]:
    """Number of items by `state`, by `verdict` and by `review`."""
    found = {}
    for name in ("state", "verdict", "review"):
        column = getattr(RegenerationItemRow, name)
        query = select(column, func.count()).where(*_of(row)).group_by(column)
        found[name] = {value: number for value, number in session.execute(query).all() if value is not None}
    return found


def items(
    session: Session,
    row: RegenerationRow,
    *,
    verdict: str | None = None,
    review: str | None = None,
    cursor: Cursor | None = None,
    limit: int = 50,
) -> Page[RegenerationItemRow]:
    """Items in their order."""
    query = select(RegenerationItemRow).where(*_of(row))
    if verdict is not None:
        query = query.where(RegenerationItemRow.verdict == verdict)
    if review is not None:
        query = query.where(RegenerationItemRow.review == review)
    ordered = lowest_first(query, RegenerationItemRow.number, cursor=cursor, limit=limit)
    return page_of_numbers(session.scalars(ordered).all(), "number", limit=limit)


def item(session: Session, row: RegenerationRow, number: int, *, lock: bool = False) -> RegenerationItemRow | None:
    """One item; locked, nobody else changes it before this transaction ends."""
    key = (row.tenant, row.regeneration_id, number)
    return session.get(RegenerationItemRow, key, with_for_update=lock or None, populate_existing=lock)


def waiting(session: Session, row: RegenerationRow, limit: int) -> Sequence[RegenerationItemRow]:
    """The next items to submit: those of lineages before plans that no lineage holds."""
    query = select(RegenerationItemRow).where(*_of(row), RegenerationItemRow.state == ItemState.WAITING)
    return session.scalars(query.order_by(RegenerationItemRow.number).limit(limit)).all()


def num_submitted(session: Session, row: RegenerationRow) -> int:
    """Items whose jobs go on."""
    query = select(func.count()).where(*_of(row), RegenerationItemRow.state == ItemState.SUBMITTED)
    return session.scalar(query) or 0


def ended(session: Session, row: RegenerationRow, limit: int) -> Sequence[tuple[RegenerationItemRow, JobRow]]:
    """Submitted items whose jobs have ended."""
    finals = [state for state in JobState if state.is_final]
    query = (
        select(RegenerationItemRow, JobRow)
        .join(JobRow, JobRow.job_id == RegenerationItemRow.job_id)
        .where(*_of(row), RegenerationItemRow.state == ItemState.SUBMITTED, JobRow.state.in_(finals))
        .order_by(RegenerationItemRow.number)
        .limit(limit)
    )
    return [(found, job) for found, job in session.execute(query)]


def submit(session: Session, entry: RegenerationItemRow, job_id: str, reasons: list[str]) -> bool:
    """Say which job plans an item, and what is known before; returns False when it no longer waits."""
    return _move(session, entry, ItemState.WAITING, state=ItemState.SUBMITTED, job_id=job_id, reasons=reasons)


def put_back(session: Session, entry: RegenerationItemRow) -> bool:
    """Let an item be submitted again; returns False when it is not submitted."""
    return _move(session, entry, ItemState.SUBMITTED, state=ItemState.WAITING, job_id=None)


def fail(session: Session, entry: RegenerationItemRow, before: ItemState, reason: str) -> bool:
    """End an item without a plan; returns False when it is no longer in the state that it was."""
    return _move(session, entry, before, state=ItemState.DONE, verdict=Verdict.FAILED, reasons=[reason])


def cancel(session: Session, row: RegenerationRow) -> None:
    """End a locked regeneration early; items that have ended stay as they are."""
    row.state = RegenerationState.CANCELLED
    row.finished_at_us = now_us()
    session.execute(
        update(RegenerationItemRow)
        .where(*_of(row), RegenerationItemRow.state.in_(OPEN_ITEMS))
        .values(state=ItemState.CANCELLED, updated_at_us=now_us())
        .execution_options(synchronize_session=False)
    )


def num_open(session: Session, row: RegenerationRow) -> int:
    """Items that have not ended."""
    return session.scalar(select(func.count()).where(*_of(row), RegenerationItemRow.state.in_(OPEN_ITEMS))) or 0


def count_running(session: Session, tenant: str | None = None) -> tuple[int, int]:
    """Regenerations that go on, and new revisions that wait for a person; of a tenant or of all."""
    running = select(func.count()).where(RegenerationRow.state == RegenerationState.RUNNING)
    reviews = select(func.count()).where(RegenerationItemRow.review == Review.WAITING)
    if tenant is not None:
        running = running.where(RegenerationRow.tenant == tenant)
        reviews = reviews.where(RegenerationItemRow.tenant == tenant)
    return session.scalar(running) or 0, session.scalar(reviews) or 0


def _move(session: Session, entry: RegenerationItemRow, before: ItemState, **values: Any) -> bool:  # noqa: ANN401
    changed = num_changed(
        session,
        update(RegenerationItemRow)
        .where(
            RegenerationItemRow.tenant == entry.tenant,
            RegenerationItemRow.regeneration_id == entry.regeneration_id,
            RegenerationItemRow.number == entry.number,
            RegenerationItemRow.state == before,
        )
        .values(**values, updated_at_us=now_us()),
    )
    return changed == 1


def _of(row: RegenerationRow) -> tuple[Any, ...]:
    return (
        RegenerationItemRow.tenant == row.tenant,
        RegenerationItemRow.regeneration_id == row.regeneration_id,
    )
