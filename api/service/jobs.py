"""Look at jobs and follow them."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.service.callers import Caller
from api.service.errors import JobFailed, NotFound
from api.service.feed import JobFeed
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from profiles_db import executors, jobs, plans, provisional, requests
from profiles_db.engine import Database
from profiles_db.pages import Cursor, Page
from profiles_db.tables import ExecutorRow, JobEventRow, JobPriority, JobRow, JobState

POLL_S = 1.0
"""Jobs that another process runs are looked at this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job, its newest progress, and the best plan so far."""

    job: JobRow
    progress: JobEventRow | None
    provisional_plan_id: str | None
    """None before there is one, and again when the proven plan has replaced it."""
    model_name: str
    cluster_name: str

    @property
    def is_final(self) -> bool:
        """Nothing will change any more."""
        return JobState(self.job.state).is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Jobs, processes and plans of all tenants."""

    by_state: dict[str, int]
    queued_by_priority: dict[JobPriority, int]
    oldest_queued_us: int | None
    """When the job was posted that has waited longest; None when none waits."""
    executors: tuple[ExecutorRow, ...]
    num_outdated_plans: int
    """Plans that another version of the planner made."""

    @property
    def workers(self) -> tuple[ExecutorRow, ...]:
        """Processes that search, and have not stopped in good order."""
        return tuple(row for row in self.executors if row.num_slots and row.heartbeat_at_us)


class JobService:
    """Reads jobs and cancels them. `stop` ends the run of a cancelled one, wherever it is queued or runs."""

    def __init__(self, database: Database, feed: JobFeed, stop: Callable[[str], None]) -> None:
        self._database = database
        self._feed = feed
        self._stop = stop
        self._is_draining = False

    def drain(self) -> None:
        """From now on nobody waits: who does hears within a second how far its job is. Safe in a signal handler."""
        self._is_draining = True

    def get(self, tenant: str, job_id: str) -> JobView:
        """A job.

        Raises:
            NotFound: the tenant has no such job.
        """
        with self._database.read() as session:
            job = jobs.get(session, tenant, job_id)
            if job is None:
                raise NotFound("job", job_id)
            return _view(session, job)

    def page(self, tenant: str, state: JobState | None, *, cursor: str | None, limit: int) -> Page[JobView]:
        """Jobs, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        after = Cursor.of(cursor)
        with self._database.read() as session:
            found = jobs.page(session, tenant, state=state, cursor=after, limit=limit)
            return Page(items=[_view(session, job) for job in found.items], next=found.next)

    def cancel(self, caller: Caller, job_id: str) -> JobView:
        """End a job, wherever it is; one that has ended is left as it is.

        Raises:
            NotFound: the tenant has no such job.
        """
        problem = JobFailed("job_cancelled", f"{caller.name} cancelled it; post the request again to start anew")
        with self._database.write() as session:
            is_cancelled = jobs.cancel(session, caller.tenant, job_id, problem.as_json())
        if is_cancelled:
            self._stop(job_id)
            self._feed.notify(job_id)
        return self.get(caller.tenant, job_id)

    async def wait(self, tenant: str, job_id: str, timeout_s: float) -> JobView:
        """The job when it has ended, or as it is after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        with self._feed.watch(job_id) as watcher:
            while True:
                view = await run_in_threadpool(self.get, tenant, job_id)
                left = deadline - time.monotonic()
                if view.is_final or left <= 0 or self._is_draining:
                    return view
                await watcher.changed(min(left, POLL_S))

    async def follow(
        self, tenant: str, job_id: str, after: int, *, silence_s: float
    ) -> AsyncIterator[JobEventRow | JobView | None]:
        """Progress after a sequence number as it comes, the job at each new provisional plan, then the ended job;
        None after `silence_s` of nothing.
        """
        spoke_at = time.monotonic()
        provisional_plan_id = None
        with self._feed.watch(job_id) as watcher:
            while True:
                view = await run_in_threadpool(self.get, tenant, job_id)
                events = await run_in_threadpool(self._events_after, job_id, after)
                for event in events:
                    after = event.sequence
                    yield event
                if events:
                    spoke_at = time.monotonic()
                    continue
                if view.provisional_plan_id not in (None, provisional_plan_id) and not view.is_final:
                    provisional_plan_id = view.provisional_plan_id
                    yield view
                if view.is_final:
                    yield view
                    return
                if self._is_draining:
                    return
                if time.monotonic() - spoke_at >= silence_s:
                    spoke_at = time.monotonic()
                    yield None
                await watcher.changed(POLL_S)

    def _events_after(self, job_id: str, sequence: int) -> list[JobEventRow]:
        with self._database.read() as session:
            return list(jobs.events_after(session, job_id, sequence))

    def overview(self) -> Overview:
        """How busy the service is."""
        with self._database.read() as session:
            return Overview(
                by_state=jobs.count_by_state(session),
                queued_by_priority=jobs.count_queued(session),
                oldest_queued_us=jobs.oldest_queued_us(session),
                executors=tuple(executors.everyone(session)),
                num_outdated_plans=plans.num_of_other_versions(session, PLANNER_VERSION),
            )


def _view(session: Session, job: JobRow) -> JobView:
    model_name, cluster_name = requests.names(session, job.tenant, job.request_hash)
    return JobView(
        job=job,
        progress=jobs.last_event(session, job.job_id),
        provisional_plan_id=provisional.latest(session, job.job_id) if job.plan_id is None else None,
        model_name=model_name,
        cluster_name=cluster_name,
    )
