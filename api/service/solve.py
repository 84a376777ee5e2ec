"""Run one job: take it, plan in a child process, publish exactly one result."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog

from api.service.errors import Interrupted, JobFailed
from api.service.feed import JobFeed
from api.service.metrics import Metrics
from api.service.planner_process import PlannerProcesses, Progress
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from planner.schema import Plan, PlanRequest
from profiles_db import jobs, plans, requests
from profiles_db.engine import Database
from profiles_db.tables import JobRow

_log = structlog.get_logger()

PROGRESS_INTERVAL_S = 0.2
"""Progress that comes faster is thinned out before it reaches the database."""


class Solver:
    """The work of a job. Runs at least once; the fence of the job lets only the newest run publish."""

    def __init__(
        self,
        database: Database,
        processes: PlannerProcesses,
        feed: JobFeed,
        metrics: Metrics,
        *,
        max_starts: int,
    ) -> None:
        self._database = database
        self._processes = processes
        self._feed = feed
        self._metrics = metrics
        self._max_starts = max_starts
        self._idle = threading.Condition()
        self._num_running = 0

    def solve(self, job_id: str) -> None:
        """Bring a job to its end; a finished one is left as it is.

        Raises:
            Interrupted: the process stops, or another one has taken the job over.
        """
        with structlog.contextvars.bound_contextvars(job_id=job_id), self._counted():
            with self._database.write() as session:
                job = jobs.start(session, job_id)
            if job is not None:
                self._feed.notify(job_id)
                self._run(job)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs; returns False when some still do after `timeout_s` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: self._num_running == 0, timeout_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._num_running += 1
        try:
            yield
        finally:
            with self._idle:
                self._num_running -= 1
                self._idle.notify_all()

    def _run(self, job: JobRow) -> None:
        try:
            plan = self._plan(job)
        except JobFailed as failure:
            self._fail(job, failure)
        except Interrupted:
            with self._database.write() as session:
                jobs.put_back(session, job.job_id, fence=job.fence)
            raise
        except Exception:
            _log.exception("solve_crashed")
            self._fail(job, JobFailed("internal_error", "the server could not run this job; its log says why"))
        else:
            self._publish(job, plan)

    def _plan(self, job: JobRow) -> Plan:
        if job.fence - job.num_interruptions > self._max_starts:
            raise JobFailed(
                "job_given_up", f"the process that ran this job died {self._max_starts} times; it is not run again"
            )
        if job.planner_version != PLANNER_VERSION:
            raise JobFailed("planner_replaced", "the planner was upgraded meanwhile; post the request again")
        with self._database.read() as session:
            request = requests.get(session, job.tenant, job.request_hash)
        assert request is not None, "foreign keys keep the request of a job"
        self._metrics.planner_starts.inc()
        with self._metrics.solve_seconds.time():
            reporter = _Reporter(self._database, self._feed, job)
            plan = self._processes.run(request.canonical_bytes(), reporter)
            reporter.flush()
        _check(plan, job, request)
        return plan

    def _publish(self, job: JobRow, plan: Plan) -> None:
        envelope = plan.envelope.model_copy(
            update={"job_id": job.job_id, "created_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        )
        plan_id = envelope.plan_id
        with self._database.write() as session:
            plans.put(session, job.tenant, plan.model_copy(update={"envelope": envelope}))
            if not jobs.finish(session, job.job_id, fence=job.fence, plan_id=plan_id):
                raise Interrupted
        self._done(job, plan.body.outcome, plan_id=plan_id)

    def _fail(self, job: JobRow, failure: JobFailed) -> None:
        problem = {
            "code": failure.code,
            "message": str(failure),
            "path": failure.path,
            "permanent": failure.permanent,
        }
        with self._database.write() as session:
            if not jobs.finish(session, job.job_id, fence=job.fence, problem=problem):
                raise Interrupted
        self._done(job, failure.code)

    def _done(self, job: JobRow, result: str, *, plan_id: str | None = None) -> None:
        self._metrics.solves.labels(result).inc()
        _log.info("job_finished", result=result, plan_id=plan_id)
        self._feed.notify(job.job_id)


class _Reporter:
    """Writes progress, thinned out; stops the run when the job was taken over."""

    def __init__(self, database: Database, feed: JobFeed, job: JobRow) -> None:
        self._database = database
        self._feed = feed
        self._job = job
        self._next_at = 0.0
        self._held_back: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Take progress; what comes too soon after the last is held back, and replaced by what comes next."""
        self._held_back = progress
        if time.monotonic() >= self._next_at:
            self.flush()

    def flush(self) -> None:
        """Write what is held back."""
        if self._held_back is None:
            return
        data = self._held_back.model_dump()
        self._held_back = None
        self._next_at = time.monotonic() + PROGRESS_INTERVAL_S
        with self._database.write() as session:
            if not jobs.add_event(session, self._job.job_id, fence=self._job.fence, data=data):
                raise Interrupted
        self._feed.notify(self._job.job_id)


def _check(plan: Plan, job: JobRow, request: PlanRequest) -> None:
    hashes = (plan.body.inputs.request, plan.body.inputs.model, plan.body.inputs.cluster)
    expected = (job.request_hash, request.model.content_hash(), request.cluster.content_hash())
    if not plan.verify() or hashes != expected or plan.body.planner_version != PLANNER_VERSION:
        _log.error("planner_answered_for_another_request", plan_id=plan.envelope.plan_id)
        raise JobFailed("planner_failed", "the plan does not belong to the request")
