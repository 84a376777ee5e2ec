"""Tables. Documents are kept once, compressed, under their content hash; times are microseconds since 1970, UTC."""

import time
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

HASH = String(71)
"""`sha256:` and 64 hex digits."""
JOB_ID = String(200)


class Base(DeclarativeBase):
    """Names every constraint, so that migrations can refer to it on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class DocumentKind(StrEnum):
    """Kinds of stored input documents."""

    MODEL = "model"
    CLUSTER = "cluster"
    PROFILE = "profile"


class DocumentRow(Base):
    """A model, cluster or profile."""

    __tablename__ = "documents"
    __table_args__ = (Index(None, "kind", "created_at_us", "content_hash"),)

    content_hash: Mapped[str] = mapped_column(HASH, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(200))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Of the canonical JSON, before compression."""
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


class RequestRow(Base):
    """A plan request; its documents are kept apart, so that requests share them."""

    __tablename__ = "requests"

    request_hash: Mapped[str] = mapped_column(HASH, primary_key=True)
    model_hash: Mapped[str] = mapped_column(HASH, ForeignKey("documents.content_hash"))
    cluster_hash: Mapped[str] = mapped_column(HASH, ForeignKey("documents.content_hash"))
    profile_hash: Mapped[str | None] = mapped_column(HASH, ForeignKey("documents.content_hash"))
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    rest: Mapped[bytes] = mapped_column(LargeBinary)
    """All other fields of the request."""


class PlanRow(Base):
    """A plan and the columns that lists show and filter by."""

    __tablename__ = "plans"
    __table_args__ = (
        Index(None, "created_at_us", "plan_id"),
        Index(None, "model_hash", "created_at_us"),
        Index(None, "cluster_hash", "created_at_us"),
        Index(None, "request_hash"),
    )

    plan_id: Mapped[str] = mapped_column(HASH, primary_key=True)
    request_hash: Mapped[str] = mapped_column(HASH, ForeignKey("requests.request_hash"))
    model_hash: Mapped[str] = mapped_column(HASH, ForeignKey("documents.content_hash"))
    cluster_hash: Mapped[str] = mapped_column(HASH, ForeignKey("documents.content_hash"))
    planner_version: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    outcome: Mapped[str] = mapped_column(String(16))
    world_size: Mapped[int] = mapped_column(BigInteger)
    step_time_ns: Mapped[int | None] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    gap: Mapped[float | None]
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


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
        Index(None, "state"),
        Index(None, "created_at_us", "job_id"),
    )

    job_id: Mapped[str] = mapped_column(JOB_ID, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    request_hash: Mapped[str] = mapped_column(HASH, ForeignKey("requests.request_hash"))
    planner_version: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    fence: Mapped[int]
    """Number of times the job was started; only the latest start may write."""
    num_interruptions: Mapped[int]
    """Starts that ended because the server stopped in good order; the others ended in death."""
    plan_id: Mapped[str | None] = mapped_column(HASH, ForeignKey("plans.plan_id"))
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


def now_us() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1000
