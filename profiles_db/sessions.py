"""Sessions of people who look at pages."""

from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from profiles_db.change import num_changed
from profiles_db.tables import SessionRow, now_us


def add(
    session: Session,
    token_sha256: str,
    *,
    expires_at_us: int,
    key_id: str | None = None,
    secret_sha256: str | None = None,
    caller: dict[str, Any] | None = None,
) -> None:
    """Store a new session, and forget those that have ended."""
    now = now_us()
    num_changed(session, delete(SessionRow).where(SessionRow.expires_at_us <= now))
    session.add(
        SessionRow(
            token_sha256=token_sha256,
            key_id=key_id,
            secret_sha256=secret_sha256,
            caller=caller,
            created_at_us=now,
            expires_at_us=expires_at_us,
        )
    )


def get(session: Session, token_sha256: str) -> SessionRow | None:
    """A session that has not ended."""
    row = session.get(SessionRow, token_sha256)
    return row if row is not None and row.expires_at_us > now_us() else None


def remove(session: Session, token_sha256: str) -> None:
    """End a session; one that is not there is left so."""
    num_changed(session, delete(SessionRow).where(SessionRow.token_sha256 == token_sha256))
