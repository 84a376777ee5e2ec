"""Heartbeats of the processes that take part in the queue; who stops beating has its jobs taken over."""

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from profiles_db.insert import insert_if_absent
from profiles_db.tables import ExecutorRow, now_us


def beat(
    session: Session, executor_id: str, *, application_version: str = "", name: str = "", num_slots: int = 0
) -> None:
    """Say that a process is alive; one that others had given up is known again."""
    at = now_us()
    values = {
        "executor_id": executor_id,
        "heartbeat_at_us": at,
        "application_version": application_version,
        "name": name[:200],
        "num_slots": num_slots,
    }
    if not insert_if_absent(session, ExecutorRow, values):
        session.execute(
            update(ExecutorRow).where(ExecutorRow.executor_id == executor_id).values(heartbeat_at_us=at)
        )


def retire(session: Session, executor_id: str) -> None:
    """Say that a process has stopped, so that others need not wait for its heartbeat to grow old."""
    session.execute(update(ExecutorRow).where(ExecutorRow.executor_id == executor_id).values(heartbeat_at_us=0))


def everyone(session: Session) -> Sequence[ExecutorRow]:
    """All processes that were not forgotten."""
    return session.scalars(select(ExecutorRow).order_by(ExecutorRow.executor_id)).all()


def forget(session: Session, executor_ids: Sequence[str]) -> None:
    """Remove executors whose jobs were taken over."""
    session.execute(delete(ExecutorRow).where(ExecutorRow.executor_id.in_(executor_ids)))
