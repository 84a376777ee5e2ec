"""API keys: hashes of secrets, never secrets."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from profiles_db.change import num_changed
from profiles_db.tables import KeyRow, now_us


def add(
    session: Session,
    *,
    key_id: str,
    tenant: str,
    name: str,
    scopes: str,
    secret_sha256: str,
    expires_at_us: int | None,
) -> KeyRow:
    """Store a new key."""
    row = KeyRow(
        key_id=key_id,
        tenant=tenant,
        name=name,
        scopes=scopes,
        secret_sha256=secret_sha256,
        created_at_us=now_us(),
        expires_at_us=expires_at_us,
    )
    session.add(row)
    session.flush()
    return row


def get(session: Session, key_id: str) -> KeyRow | None:
    """A key of any tenant."""
    return session.get(KeyRow, key_id)


def of_tenant(session: Session, tenant: str | None) -> Sequence[KeyRow]:
    """Keys of a tenant, newest first; None shows those of all tenants."""
    query = select(KeyRow).order_by(KeyRow.created_at_us.desc(), KeyRow.key_id)
    if tenant is not None:
        query = query.where(KeyRow.tenant == tenant)
    return session.scalars(query).all()


def any_exist(session: Session) -> bool:
    """Whether a key was ever made; revoked ones count, so that revoking the last one opens nothing."""
    return session.scalar(select(KeyRow.key_id).limit(1)) is not None


def rotate(session: Session, key_id: str, secret_sha256: str, *, previous_until_us: int) -> None:
    """Give a key a new secret; the old one is accepted until a moment."""
    session.execute(
        update(KeyRow)
        .where(KeyRow.key_id == key_id)
        .values(
            previous_sha256=KeyRow.secret_sha256,
            previous_until_us=previous_until_us,
            secret_sha256=secret_sha256,
            rotated_at_us=now_us(),
        )
        .execution_options(synchronize_session=False)
    )


def revoke(session: Session, key_id: str) -> bool:
    """End a key for good; returns False when it had ended before."""
    changed = num_changed(
        session,
        update(KeyRow)
        .where(KeyRow.key_id == key_id, KeyRow.revoked_at_us.is_(None))
        .values(revoked_at_us=now_us()),
    )
    return changed == 1


def touch(session: Session, key_id: str) -> None:
    """Remember that a key was used now."""
    session.execute(
        update(KeyRow)
        .where(KeyRow.key_id == key_id)
        .values(last_used_at_us=now_us())
        .execution_options(synchronize_session=False)
    )
