"""Jobs, their progress, and the processes that run them."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, JOB_ID, TENANT, Base, same_tenant


class JobState(StrEnum):
    """Life of a job; the last two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Nothing will change any more."""
        return self in (JobState.SUCCEEDED, JobState.FAILED)


class JobRow(Base):
    """One attempt to solve a request with one planner version."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("tenant", "request_hash", "planner_version", "attempt"),
        CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name="state"),
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
    fence: Mapped[int]
    """Number of times the job was started; only the latest start may write."""
    num_interruptions: Mapped[int]
    """Starts that ended because the server stopped in good order; the others ended in death."""
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


class ExecutorRow(Base):
    """A process that runs jobs, and when it last said so."""

    __tablename__ = "executors"

    executor_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    heartbeat_at_us: Mapped[int] = mapped_column(BigInteger)
