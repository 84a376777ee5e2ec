"""Advance regenerations: submit what waits, take in what is planned, tell who wants to know.

All state is in the database and every step may be repeated, so it does not matter where a process dies: when its
lease ends another one goes on. Plans are searched by the jobs that everyone else uses, a few at a time.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.service.callers import Caller, Scope
from api.service.errors import PLANNER_REPLACED
from api.service.regenerations.changes import profile_after
from api.service.regenerations.verdicts import Compared, Policy, compare, may_take_over
from api.service.regenerations.webhook import Webhook
from api.service.revisions import append, move
from planner.schema import ClusterDescription, PlanBody, PlanRequest
from planner.schema.errors import ShardwrightError
from profiles_db import documents, lineages, plans, regenerations, requests
from profiles_db.engine import Database
from profiles_db.tables import (
    Cause,
    ClusterRevisionRow,
    DocumentKind,
    ItemState,
    JobRow,
    Notice,
    RegenerationItemRow,
    RegenerationRow,
    RegenerationState,
    Review,
    Verdict,
    now_us,
)

_log = structlog.get_logger()

WINDOW = 32
"""Jobs that a regeneration has in the queue at a time."""
_AT_ONCE = 16

Submit = Callable[[Caller, PlanRequest], JobRow]


class RegenerationDriver:
    """A thread that works on regenerations of all tenants, one step of one of them at a time.

    What it works on is its own for `lease_s` seconds from the beginning of a step.
    """

    def __init__(
        self, database: Database, submit: Submit, webhook: Webhook | None, *, poll_s: float, lease_s: float
    ) -> None:
        self._database = database
        self._submit = submit
        self._webhook = webhook
        self._poll_s = poll_s
        self._lease_s = lease_s
        self._holder = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._work, name="regenerations", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the step under way, so that another process can go on."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            try:
                with self._database.write() as session:
                    regenerations.release(session, self._holder)
            except DBAPIError:
                _log.warning("regenerations_not_released", remedy="another process goes on when the lease ends")

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                is_busy = self.advance()
            except Exception:
                _log.exception("regeneration_step_failed")
                is_busy = False
            if not is_busy:
                self._stopping.wait(self._poll_s)

    def advance(self) -> bool:
        """Take a step; returns whether there may be more to do at once."""
        with self._database.read() as session:
            if not regenerations.any_has_work(session):
                return False
        with self._database.write() as session:
            row = regenerations.claim(session, self._holder, lease_us=int(self._lease_s * 1e6))
        if row is None:
            return False
        with structlog.contextvars.bound_contextvars(regeneration_id=row.regeneration_id, tenant=row.tenant):
            if row.state != RegenerationState.RUNNING:
                self._tell(row)
                return True
            taken = self._take_in(row)
            submitted = self._submit_some(row)
            if not submitted and not taken:
                self._finish(row)
            return bool(taken or submitted)

    def _submit_some(self, row: RegenerationRow) -> int:
        with self._database.read() as session:
            room = WINDOW - regenerations.num_submitted(session, row)
            entries = regenerations.waiting(session, row, max(0, min(room, _AT_ONCE)))
            cluster = _cluster(session, row)
        for entry in entries:
            if self._stopping.is_set():
                break
            with self._failing_alone(entry, ItemState.WAITING):
                self._submit_one(row, entry, cluster)
        return len(entries)

    def _submit_one(self, row: RegenerationRow, entry: RegenerationItemRow, cluster: ClusterDescription) -> None:
        with self._database.read() as session:
            request, left_out = _request(session, entry, cluster)
        caller = Caller(
            tenant=row.tenant,
            submitted_by=f"regeneration:{row.regeneration_id}",
            name="regeneration",
            scopes=frozenset(Scope),
        )
        try:
            job = self._submit(caller, request)
        except ShardwrightError as error:
            with self._database.write() as session:
                regenerations.fail(session, entry, ItemState.WAITING, str(error))
            return
        with self._database.write() as session:
            regenerations.submit(session, entry, job.job_id, reasons=[left_out] if left_out else [])

    def _take_in(self, row: RegenerationRow) -> int:
        with self._database.read() as session:
            ended = list(regenerations.ended(session, row, _AT_ONCE))
        for entry, job in ended:
            if self._stopping.is_set():
                break
            with self._failing_alone(entry, ItemState.SUBMITTED):
                self._take_in_one(row, entry, job)
        return len(ended)

    def _take_in_one(self, row: RegenerationRow, entry: RegenerationItemRow, job: JobRow) -> None:
        if job.plan_id is None:
            problem = job.problem or {}
            with self._database.write() as session:
                if problem.get("code") == PLANNER_REPLACED:
                    regenerations.put_back(session, entry)
                    return
            found = Compared(
                verdict=Verdict.FAILED, change=None, reasons=[str(problem.get("message", "it failed"))]
            )
        else:
            with self._database.read() as session:
                found = compare(*(_body(session, row.tenant, id_) for id_ in (entry.old_plan_id, job.plan_id)))
        with self._database.write() as session:
            current = regenerations.item(session, row, entry.number, lock=True)
            if current is None or current.state != ItemState.SUBMITTED or current.job_id != job.job_id:
                return
            current.state = ItemState.DONE
            current.new_plan_id = job.plan_id
            current.verdict = found.verdict
            current.change = found.change
            current.reasons = [*current.reasons, *found.reasons]
            current.updated_at_us = now_us()
            if job.plan_id is not None and current.lineage_id is not None:
                self._add_revision(session, row, current, found)

    @contextmanager
    def _failing_alone(self, entry: RegenerationItemRow, state: ItemState) -> Iterator[None]:
        """A defect that one item meets ends this item, not the regeneration; an outage ends nothing."""
        try:
            yield
        except DBAPIError:
            raise
        except Exception:
            _log.exception("regeneration_item_failed", item=entry.number)
            with self._database.write() as session:
                regenerations.fail(session, entry, state, "the server could not make it again; its log says why")

    def _add_revision(
        self, session: Session, row: RegenerationRow, item: RegenerationItemRow, found: Compared
    ) -> None:
        assert item.lineage_id is not None
        assert item.new_plan_id is not None
        lineage = lineages.locked(session, row.tenant, item.lineage_id)
        plan = plans.get_row(session, row.tenant, item.new_plan_id)
        assert lineage is not None
        assert plan is not None
        newest = lineages.revision(session, lineage, lineage.newest_revision)
        if newest is None or newest.plan_id != item.new_plan_id:
            append(session, lineage, plan, cause=Cause.REGENERATION, why=_why(session, row), by=row.created_by)
        item.new_revision = lineage.newest_revision
        if plan.outcome != "feasible":
            return
        if lineage.active_revision not in (None, item.old_revision):
            item.review = Review.WAITING
            item.reasons = [*item.reasons, f"revision {lineage.active_revision} became active meanwhile"]
        elif may_take_over(Policy.model_validate(row.policy), found):
            item.review = Review.ACTIVATED
            why = f"regeneration {row.regeneration_id}, item {item.number}: {found.verdict}"
            move(session, lineage, item.new_revision, why=why, by=row.created_by)
        else:
            item.review = Review.WAITING

    def _finish(self, row: RegenerationRow) -> None:
        with self._database.write() as session:
            current = regenerations.locked(session, row.tenant, row.regeneration_id)
            assert current is not None
            if current.state != RegenerationState.RUNNING or regenerations.num_open(session, current):
                return
            current.state = RegenerationState.DONE
            current.finished_at_us = now_us()
            current.notice = Notice.NONE if self._webhook is None else Notice.WAITING
            counts = regenerations.counts(session, current)
        _log.info("regeneration_done", cluster=row.cluster_name, num_items=row.num_items, **counts["verdict"])

    def _tell(self, row: RegenerationRow) -> None:
        with self._database.read() as session:
            counts = regenerations.counts(session, row)
        outcome = (Notice.NONE, 0) if self._webhook is None else self._webhook.tell(row, counts)
        with self._database.write() as session:
            current = regenerations.locked(session, row.tenant, row.regeneration_id)
            assert current is not None
            current.notice, pause_us = outcome
            current.notice_attempts += 1
            current.notice_at_us = now_us() + pause_us


def _request(session: Session, entry: RegenerationItemRow, cluster: ClusterDescription) -> tuple[PlanRequest, str]:
    """The request of the old plan on the new cluster, and what of its profile no longer holds.

    In a lineage the search starts from the old plan. Elsewhere it does not: the request has to be the one that a
    launcher would send, so that it finds the plan.
    """
    plan = plans.get_row(session, entry.tenant, entry.old_plan_id)
    assert plan is not None, "foreign keys keep the plans of items"
    old = requests.get(session, entry.tenant, plan.request_hash)
    assert old is not None, "foreign keys keep the requests of plans"
    profile, left_out = profile_after(old.profile, old.cluster, cluster)
    starts_warm = entry.lineage_id is not None and plan.outcome == "feasible"
    changed: dict[str, Any] = {
        "cluster": cluster,
        "profile": profile,
        "warm_start": plan.plan_id if starts_warm else None,
    }
    return old.model_copy(update=changed), left_out


def _revision(session: Session, row: RegenerationRow) -> ClusterRevisionRow:
    revision = session.get(ClusterRevisionRow, (row.tenant, row.cluster_name, row.cluster_revision))
    assert revision is not None, "foreign keys keep the revision of a regeneration"
    return revision


def _cluster(session: Session, row: RegenerationRow) -> ClusterDescription:
    body = documents.get_bytes(session, row.tenant, DocumentKind.CLUSTER, _revision(session, row).cluster_hash)
    assert body is not None, "foreign keys keep the clusters of revisions"
    return ClusterDescription.from_json(body, source="stored cluster")


def _why(session: Session, row: RegenerationRow) -> str:
    revision = _revision(session, row)
    return revision.why or f"revision {row.cluster_revision} of cluster {row.cluster_name}"


def _body(session: Session, tenant: str, plan_id: str) -> PlanBody:
    body = plans.get_body(session, tenant, plan_id)
    assert body is not None, "foreign keys keep the plans of items and jobs"
    return body
