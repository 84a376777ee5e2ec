"""Sessions of people who look at pages."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import Base


class SessionRow(Base):
    """Somebody who logged in. Of its token only the SHA-256 is kept: it has 256 random bits."""

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "expires_at_us"),)

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str | None] = mapped_column(String(32), ForeignKey("api_keys.key_id"))
    """Key that was shown; the session ends with it."""
    secret_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of the secret that was shown, so that a session ends when that secret does."""
    caller: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Who a token of the identity provider spoke of."""
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    expires_at_us: Mapped[int] = mapped_column(BigInteger)
