"""Jobs, their progress, and the processes that run them."""

from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, JOB_ID, TENANT, Base, same_tenant


class JobState(StrEnum):
    """Life of a job; all but the first two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Somebody asked for it."""
    PARKED = "parked"
    """Every start ended in the death of a process; it waits for a person, or for the next request."""

    @property
    def is_final(self) -> bool:
        """Nothing will change any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobPriority(IntEnum):
    """Who waits for a job; the lowest number runs first."""

    LAUNCHER = 0
    """A training job that is about to start."""
    BATCH = 1
    """Many requests that somebody will look at later."""
    REGENERATION = 2
    """Plans that exist and are made again."""


class JobRow(Base):
    """One attempt to solve a request with one planner version."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("tenant", "request_hash", "planner_version", "attempt"),
        CheckConstraint(f"state IN ({', '.join(repr(state.value) for state in JobState)})", name="state"),
        same_tenant("request_hash", "requests.request_hash"),
        same_tenant("plan_id", "plans.plan_id"),
        Index(None, "state"),
        Index(None, "tenant", "created_at_us", "job_id"),
        Index(None, "submitted_by", "state"),
    )

    job_id: Mapped[str] = mapped_column(JOB_ID, primary_key=True)
    tenant: Mapped[str] = mapped_column(TENANT)
    request_hash: Mapped[str] = mapped_column(HASH)
    planner_version: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    submitted_by: Mapped[str] = mapped_column(String(64))
    """Who shares a limit of running and waiting jobs: `key:...`, `oidc:...` or `anonymous`."""
    state: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int]
    """A `JobPriority`."""
    is_released: Mapped[bool]
    """Handed to the durable queue; others of its submitter come first."""
    fence: Mapped[int]
    """Number of times the job was started; only the latest start may write."""
    num_interruptions: Mapped[int]
    """Starts that ended because a process stopped in good order; the others ended in death."""
    plan_id: Mapped[str | None] = mapped_column(HASH)
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    started_at_us: Mapped[int | None] = mapped_column(BigInteger)
    finished_at_us: Mapped[int | None] = mapped_column(BigInteger)


class JobEventRow(Base):
    """Progress of a job."""

    __tablename__ = "job_events"

    job_id: Mapped[str] = mapped_column(JOB_ID, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_us: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


class ProvisionalPlanRow(Base):
    """A plan that a search had found before its end, kept for who cannot wait and for a retry."""

    __tablename__ = "provisional_plans"
    __table_args__ = (Index(None, "tenant", "plan_id"),)

    job_id: Mapped[str] = mapped_column(JOB_ID, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)
    plan_id: Mapped[str] = mapped_column(HASH, primary_key=True)
    tenant: Mapped[str] = mapped_column(TENANT)
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


class ExecutorRow(Base):
    """A process that takes part in the queue, and when it last said so."""

    __tablename__ = "executors"

    executor_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    heartbeat_at_us: Mapped[int] = mapped_column(BigInteger)
    """By its own clock; 0 when it has stopped in good order."""
    application_version: Mapped[str] = mapped_column(String(100))
    """Of the workflow and the planner; work of another version is not for it."""
    name: Mapped[str] = mapped_column(String(200))
    """Host and process, for people."""
    num_slots: Mapped[int]
    """Jobs that it runs at a time; 0 for one that only answers requests."""
