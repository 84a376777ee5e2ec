"""Look at what is made again because a cluster changed, and decide about what waits."""

from typing import Literal

from sqlalchemy.orm import Session

from api.service.callers import Caller
from api.service.errors import NotActivatable, NotFound
from api.service.regenerations.views import ItemView, RegenerationView, items_of, view_of
from api.service.revisions import move
from profiles_db import lineages, regenerations
from profiles_db.engine import Database
from profiles_db.pages import Cursor, Page
from profiles_db.tables import Notice, RegenerationItemRow, RegenerationRow, RegenerationState, Review, now_us


class RegenerationService:
    """Regenerations of a tenant. `has_webhook`: somebody is told when one is done."""

    def __init__(self, database: Database, *, has_webhook: bool) -> None:
        self._database = database
        self._has_webhook = has_webhook

    def get(self, tenant: str, regeneration_id: str) -> RegenerationView:
        """A regeneration.

        Raises:
            NotFound: the tenant has no such one.
        """
        with self._database.read() as session:
            return view_of(session, _regeneration(session, tenant, regeneration_id))

    def page(self, tenant: str, *, cluster: str | None, cursor: str | None, limit: int) -> Page[RegenerationView]:
        """Regenerations, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        with self._database.read() as session:
            found = regenerations.page(session, tenant, cluster=cluster, cursor=Cursor.of(cursor), limit=limit)
            return Page(items=[view_of(session, row) for row in found.items], next=found.next)

    def items(
        self,
        tenant: str,
        regeneration_id: str,
        *,
        verdict: str | None,
        review: str | None,
        cursor: str | None,
        limit: int,
    ) -> Page[ItemView]:
        """Items in their order; errors of `get` and `page`."""
        with self._database.read() as session:
            row = _regeneration(session, tenant, regeneration_id)
            page = regenerations.items(
                session, row, verdict=verdict, review=review, cursor=Cursor.of(cursor), limit=limit
            )
            return Page(items=items_of(session, tenant, page.items), next=page.next)

    def review(
        self, caller: Caller, regeneration_id: str, number: int, decision: Literal["accept", "reject"]
    ) -> ItemView:
        """Decide about a revision that waits for a person; the same decision again changes nothing.

        Raises:
            NotFound: no such regeneration or item.
            NotActivatable: it does not wait, or the lineage has another active revision than it was made for.
        """
        decided = Review.ACCEPTED if decision == "accept" else Review.REJECTED
        with self._database.write() as session:
            row = _regeneration(session, caller.tenant, regeneration_id)
            item = regenerations.item(session, row, number, lock=True)
            if item is None:
                raise NotFound("item", f"{number} of regeneration {regeneration_id}")
            (view,) = items_of(session, caller.tenant, [item])
            if item.review == decided:
                return view
            if item.review != Review.WAITING or item.lineage_id is None or item.new_revision is None:
                raise NotActivatable(f"item {number} does not wait for a decision: {item.review}")
            if decided is Review.ACCEPTED:
                _accept(session, item, caller)
            item.review = decided
            item.reviewed_by = caller.submitted_by
            item.updated_at_us = now_us()
            return view

    def overview(self) -> tuple[int, int]:
        """Regenerations that go on, over all tenants, and new revisions that wait for a person."""
        with self._database.read() as session:
            return regenerations.count_running(session)

    def cancel(self, tenant: str, regeneration_id: str) -> RegenerationView:
        """Make nothing more again; what is done stays, and searches under way end by themselves.

        Raises:
            NotFound: the tenant has no such one.
        """
        with self._database.write() as session:
            _regeneration(session, tenant, regeneration_id)
            row = regenerations.locked(session, tenant, regeneration_id)
            assert row is not None
            if row.state == RegenerationState.RUNNING:
                regenerations.cancel(session, row)
                if self._has_webhook:
                    row.notice = Notice.WAITING
            return view_of(session, row)


def _accept(session: Session, item: RegenerationItemRow, caller: Caller) -> None:
    assert item.lineage_id is not None
    assert item.new_revision is not None
    lineage = lineages.locked(session, item.tenant, item.lineage_id)
    assert lineage is not None, "foreign keys keep the lineages of items"
    if lineage.active_revision not in (None, item.old_revision, item.new_revision):
        raise NotActivatable(
            f"lineage {lineage.name} has revision {lineage.active_revision} active, not {item.old_revision}, which "
            "this was made to replace; reject it, or activate it through the lineage"
        )
    why = f"regeneration {item.regeneration_id}, item {item.number}: accepted"
    move(session, lineage, item.new_revision, why=why, by=caller.submitted_by)


def _regeneration(session: Session, tenant: str, regeneration_id: str) -> RegenerationRow:
    row = regenerations.get(session, tenant, regeneration_id)
    if row is None:
        raise NotFound("regeneration", regeneration_id)
    return row
