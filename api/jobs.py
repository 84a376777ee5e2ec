"""Durable work: the only module that knows DBOS.

A job is a workflow with one step. DBOS keeps the queue, starts each workflow once and hands the workflows of a
dead process to a living one; what a job means and what came of it stand in our own tables.
"""

import logging
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import structlog
from dbos import DBOS, DBOSConfig, SetEnqueueOptions, SetWorkflowID
from dbos._serialization import DBOSPortableJSON

from api.settings import Settings
from profiles_db import executors, jobs
from profiles_db.engine import Database
from profiles_db.tables import JobRow

_log = structlog.get_logger()

QUEUE = "interactive"
WORKFLOW_VERSION = "2"
"""Pinned, since DBOS would else derive one from the source and leave pending work behind at every upgrade. Raise it
when the steps of the workflow change."""


class JobRunner:
    """The queue of this process. DBOS allows one per process; `start` and `stop` bracket its life."""

    def __init__(self, database: Database, settings: Settings, solve: Callable[[str], None]) -> None:
        self._database = database
        self._settings = settings
        self.solve = solve
        self.executor_id = uuid.uuid4().hex
        self.is_running = False
        self._stopping = threading.Event()
        self._heart: threading.Thread | None = None

    def start(self) -> None:
        """Start working, and take over what dead processes left."""
        global _current
        if _current is not None:
            raise RuntimeError("this process already runs jobs")
        _current = self
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._beat()
        _launch(self._config())
        DBOS.register_queue(
            QUEUE,
            worker_concurrency=self._settings.max_concurrent_solves,
            partition_concurrency=self._settings.max_solves_per_key,
            polling_interval_sec=self._settings.queue_poll_s,
            on_conflict="always_update",
        )
        self._take_over()
        self._mend()
        self._heart = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._heart.start()
        self.is_running = True

    def stop(self) -> None:
        """Stop working; jobs under way stay as they are and are resumed by the next process."""
        global _current
        self.is_running = False
        self._stopping.set()
        if self._heart is not None:
            self._heart.join()
        DBOS.destroy()
        with self._database.write() as session:
            executors.retire(session, self.executor_id)
        _current = None

    def enqueue(self, job: JobRow) -> None:
        """Put a job on the queue; one that is there already is left alone.

        The queue has a part for each key: each may run so many at a time, and free slots go to a part at random, so
        that a key with a thousand jobs does not keep another one waiting for all of them.
        """
        part = f"{job.tenant}/{job.submitted_by}"
        with SetWorkflowID(job.job_id), SetEnqueueOptions(queue_partition_key=part):
            DBOS.enqueue_workflow(QUEUE, _solve_workflow, job.job_id)

    def _config(self) -> DBOSConfig:
        return {
            "name": "shardwright",
            "system_database_url": _queue_url(self._database),
            "sys_db_pool_size": 5,
            "application_version": WORKFLOW_VERSION,
            "executor_id": self.executor_id,
            "serializer": DBOSPortableJSON,
            "log_level": "WARNING",
            "enable_otlp": False,
        }

    def _beat(self) -> None:
        with self._database.write() as session:
            executors.beat(session, self.executor_id)

    def _keep_beating(self) -> None:
        while not self._stopping.wait(self._settings.heartbeat_s):
            try:
                self._beat()
                self._take_over()
            except Exception:
                _log.exception("heartbeat_failed")

    def _take_over(self) -> None:
        """Put the work of dead processes back on the queue. On SQLite all others are dead: we hold the file."""
        timeout_us = 0 if self._database.is_sqlite else int(self._settings.heartbeat_timeout_s * 1e6)
        with self._database.read() as session:
            dead = list(executors.dead(session, self.executor_id, older_than_us=timeout_us))
        if not dead:
            return
        handles = DBOS._recover_pending_workflows(dead)
        with self._database.write() as session:
            executors.forget(session, dead)
        _log.info("jobs_taken_over", num_executors=len(dead), num_jobs=len(handles))

    def _mend(self) -> None:
        """Bring our table and the queue together where a crash came between writing one and the other."""
        with self._database.read() as session:
            waiting = jobs.unfinished(session)
        for job in waiting:
            status = DBOS.get_workflow_status(job.job_id)
            if status is None:
                self.enqueue(job)
            elif status.status not in ("ENQUEUED", "PENDING", "DELAYED"):
                problem = {
                    "code": "internal_error",
                    "message": "the queue lost this job; post the request again",
                }
                with self._database.write() as session:
                    jobs.finish(session, job.job_id, fence=job.fence, problem=problem)


_current: JobRunner | None = None


@DBOS.step(name="solve")
def _solve_step(job_id: str) -> None:
    assert _current is not None
    _current.solve(job_id)


@DBOS.workflow(name="solve")
def _solve_workflow(job_id: str) -> None:
    _solve_step(job_id)


def _launch(config: DBOSConfig) -> None:
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    DBOS(config=config)
    DBOS.launch()


def _queue_url(database: Database) -> str:
    """DBOS's own tables: a second file beside SQLite's, the schema `dbos` on PostgreSQL."""
    if database.path is None:
        return database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    path = Path(f"{database.path}.queue")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return f"sqlite:///{path}"
