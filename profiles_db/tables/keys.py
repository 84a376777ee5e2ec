"""API keys."""

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import TENANT, Base


class KeyRow(Base):
    """An API key. Of its secret only the SHA-256 is kept: it has 256 random bits, so nothing slower is needed."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "tenant", "created_at_us", "key_id"),)

    key_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant: Mapped[str] = mapped_column(TENANT)
    name: Mapped[str] = mapped_column(String(200))
    scopes: Mapped[str] = mapped_column(String(64))
    """Sorted, with spaces between."""
    secret_sha256: Mapped[str] = mapped_column(String(64))
    previous_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of the secret before the last rotation, as long as it is still accepted."""
    previous_until_us: Mapped[int | None] = mapped_column(BigInteger)
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    rotated_at_us: Mapped[int | None] = mapped_column(BigInteger)
    expires_at_us: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at_us: Mapped[int | None] = mapped_column(BigInteger)
    last_used_at_us: Mapped[int | None] = mapped_column(BigInteger)
    """To the minute."""
