"""Durable work: the only module that knows DBOS.

A job is a workflow with one step. DBOS keeps the queue, hands each workflow to one process, and takes it back when
that process is declared dead. What a job means, who may write its result and what came of it stand in our own
tables (ADR 15).
"""

import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dbos import DBOS, DBOSConfig, SetEnqueueOptions, SetWorkflowID
from dbos._dbos import _get_dbos_instance
from dbos._serialization import DBOSPortableJSON
from sqlalchemy import update

from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from profiles_db.engine import Database
from profiles_db.tables import JobPriority

QUEUE = "solves"
APPLICATION_VERSION = f"3-{PLANNER_VERSION}"
"""Pinned, since DBOS would else derive one from the source and leave pending work behind at every change of it.
The number is raised when the steps of the workflow change; the planner's version keeps jobs from planners that
would refuse them while old and new workers run side by side.
"""
_RANKS = 2**20
_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the queue knows of a job."""

    is_ended: bool
    executor_id: str | None
    """Who runs it; None while it waits."""
    application_version: str | None


class DurableQueue:
    """The queue of this process. DBOS allows one per process; `start` and `stop` bracket its life."""

    def __init__(self, database: Database, executor_id: str, solve: Callable[[str], None]) -> None:
        self._database = database
        self._executor_id = executor_id
        self.solve = solve

    def start(self, *, num_slots: int, poll_s: float) -> None:
        """Connect, and take jobs from the queue unless `num_slots` is 0.

        The number of slots stands in the database: where processes differ, the last that started sets it for all.
        """
        global _current
        if _current is not None:
            raise RuntimeError("this process already runs jobs")
        _current = self
        logger = logging.getLogger("dbos")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        DBOS(config=self._config())
        DBOS.listen_queues([QUEUE] if num_slots else [])
        DBOS.launch()
        DBOS.register_queue(
            QUEUE,
            worker_concurrency=max(1, num_slots),
            polling_interval_sec=poll_s,
            on_conflict="always_update" if num_slots else "never_update",
        )

    def stop(self) -> None:
        """Let go; runs under way stay as they are and are resumed by another process."""
        global _current
        DBOS.destroy()
        _current = None

    def put(self, job_id: str, priority: JobPriority, rank: int) -> None:
        """Put a job on the queue; one that is there already is left alone.

        Urgent jobs come first, then those that have the fewest of the same submitter before them, then the oldest.
        """
        with SetWorkflowID(job_id), SetEnqueueOptions(priority=_number(priority, rank)):
            DBOS.enqueue_workflow(QUEUE, _solve_workflow, job_id)

    def hasten(self, job_id: str, priority: JobPriority) -> None:
        """Let a job that waits on the queue be more urgent; DBOS has no public way to do that."""
        system = _get_dbos_instance()._sys_db
        table = system.tables.workflow_status
        number = _number(priority, 0)
        with system.engine.begin() as connection:
            connection.execute(
                update(table)
                .where(table.c.workflow_uuid == job_id, table.c.status == "ENQUEUED", table.c.priority > number)
                .values(priority=number)
            )

    def put_again(self, job_id: str, priority: JobPriority, rank: int) -> None:
        """Put a job on the queue that the queue holds for ended, or for work of another version."""
        DBOS.delete_workflow(job_id)
        self.put(job_id, priority, rank)

    def cancel(self, job_id: str) -> None:
        """Take a job off the queue; a run of it is not interrupted, since DBOS cannot interrupt a step."""
        DBOS.cancel_workflow(job_id)

    def entries(self, job_ids: Sequence[str]) -> dict[str, Entry]:
        """What the queue knows of these jobs; those that it does not know are left out."""
        found = {}
        for start in range(0, len(job_ids), _IDS_AT_ONCE):
            ids = list(job_ids[start : start + _IDS_AT_ONCE])
            for status in DBOS.list_workflows(workflow_ids=ids, load_input=False, load_output=False):
                found[status.workflow_id] = Entry(
                    is_ended=status.status not in ("ENQUEUED", "DELAYED", "PENDING"),
                    executor_id=status.executor_id if status.status == "PENDING" else None,
                    application_version=status.app_version,
                )
        return found

    def take_over(self, executor_ids: Iterable[str]) -> int:
        """Put back what dead processes had taken; returns how many jobs that were.

        DBOS has a public way for processes that start again under their old name, but ours never do.
        """
        return len(DBOS._recover_pending_workflows(list(executor_ids)))

    def _config(self) -> DBOSConfig:
        return {
            "name": "shardwright",
            "system_database_url": _queue_url(self._database),
            "sys_db_pool_size": 5,
            "sys_db_idle_transaction_timeout_sec": self._database.idle_transaction_s,
            "application_version": APPLICATION_VERSION,
            "executor_id": self._executor_id,
            "serializer": DBOSPortableJSON,
            "log_level": "WARNING",
            "enable_otlp": False,
        }


def _number(priority: JobPriority, rank: int) -> int:
    """DBOS runs the lowest number first, and 0, its default, before all others: every job gets one from 1 on."""
    return 1 + priority * _RANKS + min(rank, _RANKS - 1)


_current: DurableQueue | None = None


@DBOS.step(name="solve")
def _solve_step(job_id: str) -> None:
    assert _current is not None
    _current.solve(job_id)


# The job itself counts deaths, and leaves out stops in good order; DBOS's limit would leave it without an end.
@DBOS.workflow(name="solve", max_recovery_attempts=None)
def _solve_workflow(job_id: str) -> None:
    _solve_step(job_id)


def _queue_url(database: Database) -> str:
    """DBOS's own tables: a second file beside SQLite's, the schema `dbos` on PostgreSQL."""
    if database.path is None:
        return database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    path = Path(f"{database.path}.queue")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return f"sqlite:///{path}"
