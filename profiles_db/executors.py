"""Heartbeats of the processes that run jobs; who stopped beating has its jobs taken over."""

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from profiles_db.insert import insert_if_absent
from profiles_db.tables import ExecutorRow, now_us


def beat(session: Session, executor_id: str) -> None:
    """Say that a process is alive."""
    at = now_us()
    if not insert_if_absent(session, ExecutorRow, {"executor_id": executor_id, "heartbeat_at_us": at}):
        session.execute(
            update(ExecutorRow).where(ExecutorRow.executor_id == executor_id).values(heartbeat_at_us=at)
        )


def retire(session: Session, executor_id: str) -> None:
    """Say that a process has stopped, so that others need not wait for its heartbeat to grow old."""
    session.execute(update(ExecutorRow).where(ExecutorRow.executor_id == executor_id).values(heartbeat_at_us=0))


def dead(session: Session, executor_id: str, *, older_than_us: int) -> Sequence[str]:
    """Other executors whose last heartbeat lies further back than `older_than_us` microseconds."""
    query = select(ExecutorRow.executor_id).where(
        ExecutorRow.executor_id != executor_id, ExecutorRow.heartbeat_at_us <= now_us() - older_than_us
    )
    return session.scalars(query).all()


def forget(session: Session, executor_ids: Sequence[str]) -> None:
    """Remove executors whose jobs were taken over."""
    session.execute(delete(ExecutorRow).where(ExecutorRow.executor_id.in_(executor_ids)))
