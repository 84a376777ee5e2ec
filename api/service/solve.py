"""Run one job: take it, plan in a child process, publish exactly one result."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from api.service.errors import PLANNER_REPLACED, Interrupted, JobFailed, PlannerKilled
from api.service.feed import JobFeed
from api.service.metrics import Metrics
from api.service.planner_input import planner_input
from api.service.planner_process import PlannerProcesses, Progress, StopSwitch
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from planner.schema import Plan, PlanRequest
from profiles_db import jobs, plans, provisional
from profiles_db.engine import Database, is_outage
from profiles_db.tables import JobRow, JobState

_log = structlog.get_logger()
T = TypeVar("T")

PROGRESS_INTERVAL_S = 0.2
"""Progress that comes faster is thinned out before it reaches the database."""
GIVEN_UP = "job_given_up"
DATABASE_PAUSE_S = 0.5
"""Between two tries to reach a database that is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A start of a job that goes on in this process."""

    fence: int
    switch: StopSwitch = field(default_factory=StopSwitch)


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
        self._running: dict[str, _Run] = {}
        self._stopping = threading.Event()

    def solve(self, job_id: str) -> None:
        """Bring a job to its end; a finished one is left as it is.

        Raises:
            Interrupted: the process stops, or another one has taken the job over.
        """
        with structlog.contextvars.bound_contextvars(job_id=job_id):
            why = "the process that ran it died"
            while (job := self._write(lambda session: jobs.start(session, job_id))) is not None:
                try:
                    with self._noted(job) as switch:
                        self._run(job, switch, why)
                except PlannerKilled as killed:
                    why = str(killed)
                    _log.warning("planner_killed", reason=why, start=job.fence)
                except Interrupted:
                    if not self._has_ended(job):
                        raise

    def stop_job(self, job_id: str) -> None:
        """Stop the run of a job here, if there is one; its planner is killed at once."""
        with self._idle:
            run = self._running.get(job_id)
        if run is not None:
            run.switch.strike()

    def stop_lost(self) -> None:
        """Stop runs whose job was cancelled or taken over elsewhere."""
        with self._idle:
            running = dict(self._running)
        if not running:
            return
        with self._database.read() as session:
            kept = jobs.still_running(session, {job_id: run.fence for job_id, run in running.items()})
        for job_id, run in running.items():
            if job_id not in kept:
                run.switch.strike()

    def stop(self) -> None:
        """Stop every run and start no new one; their jobs go back to the queue."""
        self._stopping.set()
        self._processes.stop()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs; returns False when some still do after `timeout_s` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._running, timeout_s)

    @contextmanager
    def _noted(self, job: JobRow) -> Iterator[StopSwitch]:
        run = _Run(fence=job.fence)
        with self._idle:
            self._running[job.job_id] = run
        try:
            self._feed.notify(job.job_id)
            yield run.switch
        finally:
            with self._idle:
                del self._running[job.job_id]
                self._idle.notify_all()

    def _write(self, work: Callable[[Session], T]) -> T:
        """A transaction; while the database is away it is tried again, so that no result is lost.

        Raises:
            Interrupted: the process stops before the database is back.
        """
        while True:
            try:
                with self._database.write() as session:
                    return work(session)
            except Exception as error:
                if not is_outage(error):
                    raise
                _log.warning("database_away", error=str(error).partition("\n")[0])
            if self._stopping.wait(DATABASE_PAUSE_S):
                raise Interrupted

    def _has_ended(self, job: JobRow) -> bool:
        """Whether a job has its end, since it was cancelled or a result was published under its fence."""
        if self._stopping.is_set():
            return False
        now = self._write(lambda session: jobs.get(session, job.tenant, job.job_id))
        return now is not None and JobState(now.state).is_final

    def _run(self, job: JobRow, switch: StopSwitch, why: str) -> None:
        try:
            self._refuse(job, why)
            plan = self._plan(job, switch)
        except JobFailed as failure:
            self._fail(job, failure)
        except Interrupted:
            if self._stopping.is_set():
                with self._database.write() as session:
                    jobs.put_back(session, job.job_id, fence=job.fence)
            raise
        except PlannerKilled:
            raise
        except Exception:
            _log.exception("solve_crashed")
            self._fail(job, JobFailed("internal_error", "the server could not run this job; its log says why"))
        else:
            self._publish(job, plan)

    def _refuse(self, job: JobRow, why: str) -> None:
        if job.fence - job.num_interruptions > self._max_starts:
            raise JobFailed(
                GIVEN_UP,
                f"it was started {self._max_starts} times, and the last time {why}; it is parked until the request "
                "is posted again",
            )
        if job.planner_version != PLANNER_VERSION:
            raise JobFailed(PLANNER_REPLACED, "the planner was upgraded meanwhile; post the request again")

    def _plan(self, job: JobRow, switch: StopSwitch) -> Plan:
        request, text = self._write(lambda session: planner_input(session, job))
        self._metrics.planner_starts.inc()
        with self._metrics.solve_seconds.time():
            reporter = _Reporter(self._database, self._feed, job, request)
            plan = self._processes.run(
                text,
                switch,
                on_progress=reporter.take,
                on_provisional=reporter.keep,
            )
            reporter.flush()
        _check(plan, job, request)
        return plan

    def _publish(self, job: JobRow, plan: Plan) -> None:
        plan_id = plan.envelope.plan_id
        signed = _with_envelope(plan, job)

        def publish(session: Session) -> None:
            plans.put(session, job.tenant, signed)
            if not jobs.finish(session, job.job_id, fence=job.fence, plan_id=plan_id):
                raise Interrupted

        self._write(publish)
        if plan.body.certificate is not None:
            self._metrics.gaps.observe(plan.body.certificate.gap)
        self._done(job, plan.body.outcome, plan_id=plan_id)

    def _fail(self, job: JobRow, failure: JobFailed) -> None:
        state = JobState.PARKED if failure.code == GIVEN_UP else JobState.FAILED
        problem = failure.as_json()
        if not self._write(
            lambda session: jobs.finish(session, job.job_id, fence=job.fence, problem=problem, failed=state)
        ):
            raise Interrupted
        self._done(job, failure.code)

    def _done(self, job: JobRow, result: str, *, plan_id: str | None = None) -> None:
        self._metrics.solves.labels(result).inc()
        _log.info("job_finished", result=result, plan_id=plan_id)
        self._feed.notify(job.job_id)


class _Reporter:
    """Writes progress, thinned out, and loses it while the database is away; stops a run that was taken over."""

    def __init__(self, database: Database, feed: JobFeed, job: JobRow, request: PlanRequest) -> None:
        self._database = database
        self._feed = feed
        self._job = job
        self._request = request
        self._next_at = 0.0
        self._held_back: Progress | None = None

    def take(self, progress: Progress) -> None:
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
        self._write(lambda session: jobs.add_event(session, self._job.job_id, fence=self._job.fence, data=data))

    def keep(self, plan: Plan) -> None:
        """Write the best plan so far, after the progress that led to it."""
        _check(plan, self._job, self._request)
        self.flush()
        whole = _with_envelope(plan, self._job)
        self._write(lambda session: provisional.put(session, self._job, whole))

    def _write(self, work: Callable[[Session], bool]) -> None:
        try:
            with self._database.write() as session:
                if not work(session):
                    raise Interrupted
        except Exception as error:
            if not is_outage(error):
                raise
        self._feed.notify(self._job.job_id)


def _with_envelope(plan: Plan, job: JobRow) -> Plan:
    made = {"job_id": job.job_id, "created_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    return plan.model_copy(update={"envelope": plan.envelope.model_copy(update=made)})


def _check(plan: Plan, job: JobRow, request: PlanRequest) -> None:
    hashes = (plan.body.inputs.request, plan.body.inputs.model, plan.body.inputs.cluster)
    expected = (job.request_hash, request.model.content_hash(), request.cluster.content_hash())
    if not plan.verify() or hashes != expected or plan.body.planner_version != PLANNER_VERSION:
        _log.error("planner_answered_for_another_request", plan_id=plan.envelope.plan_id)
        raise JobFailed("planner_failed", "the plan does not belong to the request")
