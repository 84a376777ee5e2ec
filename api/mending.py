"""Bring our table of jobs and the queue together where a death or an outage came between writing the two."""

import time
from collections.abc import Collection, Sequence

import structlog
from sqlalchemy.orm import Session

from api.jobs import APPLICATION_VERSION, DurableQueue, Entry
from api.service.errors import PLANNER_REPLACED
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from profiles_db import jobs
from profiles_db.engine import Database
from profiles_db.tables import ExecutorRow, JobPriority, JobRow

_log = structlog.get_logger()

_REPLACED = {"code": PLANNER_REPLACED, "message": "the planner was upgraded; another job plans the request again"}


class Mender:
    """Finds jobs that nobody would run. Remembers how long those that this process took have been idle."""

    def __init__(self, database: Database, queue: DurableQueue, executor_id: str, *, idle_timeout_s: float) -> None:
        self._database = database
        self._queue = queue
        self._executor_id = executor_id
        self._idle_timeout_s = idle_timeout_s
        self._idle_since: dict[str, float] = {}
        """Jobs that the queue says run here though they do not, and when that was first seen."""

    def mend(self, living: Sequence[ExecutorRow], dead: Collection[str], solving: Collection[str]) -> None:
        """Put released jobs that have no end, and that the queue would never run, back on it.

        Args:
            living: Processes that are not known to be dead, this one too.
            dead: Identities of those that are; what they had taken is taken over elsewhere.
            solving: Jobs that run in this process.
        """
        with self._database.read() as session:
            expected = jobs.released(session)
        entries = self._queue.entries([job.job_id for job in expected])
        names = {row.executor_id for row in living}
        versions = {row.application_version for row in living}
        strangers = set()
        taken = [job for job in expected if self._has_taken(entries.get(job.job_id))]
        lost = self._idle_here([job for job in taken if job.job_id not in solving])
        for job in expected:
            match entries.get(job.job_id):
                case None:
                    self._queue.put(job.job_id, JobPriority(job.priority), 0)
                case Entry(is_ended=True):
                    lost.append(job)
                case Entry(application_version=version) if version not in versions:
                    lost.append(job)
                case Entry(executor_id=str(name), application_version=version) if name not in names:
                    if version == APPLICATION_VERSION and name not in dead:
                        strangers.add(name)
        if strangers:
            self._queue.take_over(strangers)
        if lost:
            self._run_again(lost)

    def _has_taken(self, entry: Entry | None) -> bool:
        return entry is not None and entry.executor_id == self._executor_id

    def _idle_here(self, idle: Sequence[JobRow]) -> list[JobRow]:
        """Of jobs that this process took from the queue and does not run, those that it will not run: DBOS forgets
        what it took when the database goes away at that moment. They are given a while, since some may be about to
        start.
        """
        now = time.monotonic()
        self._idle_since = {job.job_id: self._idle_since.get(job.job_id, now) for job in idle}
        return [job for job in idle if now - self._idle_since[job.job_id] > self._idle_timeout_s]

    def _run_again(self, lost: Sequence[JobRow]) -> None:
        """Jobs that the queue will not run, though they have no end, unless they came to it just now."""
        with self._database.read() as session:
            unfinished = {job.job_id for job in jobs.released(session)}
        for job in lost:
            if job.job_id not in unfinished:
                continue
            _log.warning("job_put_back", job_id=job.job_id)
            if job.planner_version == PLANNER_VERSION:
                self._queue.put_again(job.job_id, JobPriority(job.priority), 0)
            else:
                with self._database.write() as session:
                    _replace(session, job)


def _replace(session: Session, job: JobRow) -> None:
    """End a job of another planner version, and let this one plan its request unless it has."""
    if not jobs.finish(session, job.job_id, fence=job.fence, problem=_REPLACED):
        return
    if jobs.latest(session, job.tenant, job.request_hash, PLANNER_VERSION) is None:
        jobs.add(
            session,
            job.tenant,
            job.request_hash,
            PLANNER_VERSION,
            attempt=1,
            submitted_by=job.submitted_by,
            priority=JobPriority(job.priority),
        )
