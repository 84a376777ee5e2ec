"""The part of a process in the queue: hands jobs to it, runs them, says that it lives, takes over from the dead."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Protocol

import structlog

from api.heartbeats import Silence
from api.jobs import APPLICATION_VERSION, DurableQueue
from api.mending import Mender
from api.settings import Settings
from profiles_db import executors, jobs
from profiles_db.engine import Database, is_outage
from profiles_db.tables import ExecutorRow, JobPriority, JobRow, JobState

_log = structlog.get_logger()

WATCH_S = 0.5
"""Runs here are compared with the database this often: a job may have been cancelled elsewhere."""
RELEASE_S = 5.0
"""A run that has ended waits for so long at most until its submitter's next jobs are on the queue."""
STOP_TIMEOUT_S = 5.0
"""How long a thread is waited for that may be held up by a database that is away."""


class Runs(Protocol):
    """What is done with a job whose turn has come."""

    def solve(self, job_id: str) -> None:
        """Bring a job to its end."""

    def stop_job(self, job_id: str) -> None:
        """Stop its run, if it runs here."""

    def stop_lost(self) -> None:
        """Stop the runs of jobs that were cancelled or taken over."""


class JobRunner:
    """The part that this process has in the queue. `start` and `stop` bracket its life."""

    def __init__(self, database: Database, settings: Settings, runs: Runs, *, has_worker: bool) -> None:
        self._database = database
        self._settings = settings
        self._runs = runs
        self.has_worker = has_worker
        self._num_slots = settings.max_concurrent_solves if has_worker else 0
        self.executor_id = uuid.uuid4().hex
        self.is_running = False
        self._queue = DurableQueue(database, self.executor_id, self._solve)
        self._silence = Silence(0 if database.is_sqlite else settings.heartbeat_timeout_s)
        self._dead: Collection[str] = ()
        self._beaten_at = 0.0
        self._solving: set[str] = set()
        self._mender = Mender(database, self._queue, self.executor_id, idle_timeout_s=settings.heartbeat_timeout_s)
        self._stopping = threading.Event()
        self._work_left = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start working, and take over what dead processes left."""
        self._beat()
        self._queue.start(num_slots=self._num_slots, poll_s=self._settings.queue_poll_s)
        try:
            self._tidy_up()
        except BaseException:
            self.stop()
            raise
        for name, work in (("heartbeat", self._keep_beating), ("housekeeping", self._keep_house)):
            self._threads.append(threading.Thread(target=work, name=name, daemon=True))
            self._threads[-1].start()
        self.is_running = True

    def stop(self) -> None:
        """Stop working; jobs under way stay as they are and are resumed by another process."""
        self.is_running = False
        self._stopping.set()
        self._work_left.set()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        self._queue.stop()
        try:
            with self._database.write() as session:
                executors.retire(session, self.executor_id)
        except Exception as error:
            _log_failure("retirement_failed", error)

    def why_not_ready(self) -> str | None:
        """Why no job can be handed to the queue now; None when all is well."""
        if not self.is_running:
            return "jobs are not worked on: the process starts or stops"
        if not all(thread.is_alive() for thread in self._threads):
            return "a thread that looks after the queue has ended; start the process again"
        silent_s = time.monotonic() - self._beaten_at
        if silent_s > self._settings.heartbeat_timeout_s:
            return f"the queue was not heard of for {silent_s:.0f} seconds"
        return None

    def enqueue(self, job: JobRow) -> None:
        """Let a job wait for its turn; one that does already may have become more urgent."""
        if not job.is_released:
            self._release(job.submitted_by, JobPriority(job.priority))
        elif job.state == JobState.QUEUED:
            self._queue.hasten(job.job_id, JobPriority(job.priority))

    def cancel(self, job_id: str) -> None:
        """Stop a job that our own table says is cancelled."""
        self._runs.stop_job(job_id)
        self._queue.cancel(job_id)
        self._work_left.set()

    def _solve(self, job_id: str) -> None:
        self._solving.add(job_id)
        try:
            self._runs.solve(job_id)
            self._release_next()
        finally:
            self._solving.discard(job_id)
            self._work_left.set()

    def _release(self, submitted_by: str, priority: JobPriority) -> None:
        """Hand over the next jobs of a submitter.

        Only a few of each are on the queue at a time: that limits how many run, and what is not on it yet can still
        become more urgent.
        """
        with self._database.write() as session:
            taken = jobs.release(session, submitted_by, priority, at_most=self._settings.max_solves_per_key)
        for job, rank in taken:
            self._queue.put(job.job_id, priority, rank)

    def _release_next(self) -> None:
        """Hand over what waits before this run gives its slot back: else a less urgent job that is on the queue
        already could take it. In a thread of its own, since DBOS starts no workflow from within a step.
        """

        def release() -> None:
            try:
                if not self._stopping.is_set():
                    self._release_waiting()
            except Exception as error:
                _log_failure("release_failed", error)

        thread = threading.Thread(target=release, name="release", daemon=True)
        thread.start()
        thread.join(RELEASE_S)

    def _release_waiting(self) -> None:
        with self._database.read() as session:
            waiting = jobs.waiting(session)
        for submitted_by, priority in waiting:
            self._release(submitted_by, priority)

    def _keep_beating(self) -> None:
        waited_s, pause_s = 0.0, min(WATCH_S, self._settings.heartbeat_s)
        while not self._stopping.wait(pause_s):
            waited_s += pause_s
            try:
                self._runs.stop_lost()
                if waited_s >= self._settings.heartbeat_s:
                    self._beat()
                    waited_s = 0.0
            except Exception as error:
                _log_failure("heartbeat_failed", error)

    def _keep_house(self) -> None:
        while not self._stopping.is_set():
            self._work_left.wait(self._settings.heartbeat_s)
            self._work_left.clear()
            try:
                self._tidy_up()
            except Exception as error:
                _log_failure("housekeeping_failed", error)

    def _beat(self) -> None:
        with self._database.write() as session:
            executors.beat(
                session,
                self.executor_id,
                application_version=APPLICATION_VERSION,
                name=f"{socket.gethostname()}:{os.getpid()}",
                num_slots=self._num_slots,
            )
            others = [row for row in executors.everyone(session) if row.executor_id != self.executor_id]
        self._beaten_at = time.monotonic()
        self._dead = self._silence.dead({row.executor_id: row.heartbeat_at_us for row in others})

    def _tidy_up(self) -> None:
        if self._stopping.is_set():
            return
        living = self._bury()
        self._mender.mend(living, self._dead, self._solving)
        self._release_waiting()

    def _bury(self) -> Sequence[ExecutorRow]:
        """Put the work of dead processes back on the queue; returns who lives. On SQLite nobody else does: we hold
        the file.
        """
        with self._database.read() as session:
            everyone = executors.everyone(session)
        living = [row for row in everyone if row.executor_id not in self._dead]
        known = {row.application_version for row in living} - {APPLICATION_VERSION}
        ours = [
            row.executor_id
            for row in everyone
            if row.executor_id in self._dead and row.application_version not in known
        ]
        if ours:
            num_jobs = self._queue.take_over(ours)
            with self._database.write() as session:
                executors.forget(session, ours)
            _log.info("jobs_taken_over", num_executors=len(ours), num_jobs=num_jobs)
        return living


def _log_failure(event: str, error: Exception) -> None:
    if is_outage(error):
        _log.warning(event, error=str(error).partition("\n")[0])
    else:
        _log.error(event, exc_info=error)
