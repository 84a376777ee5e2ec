"""Input documents and requests: kept once for each tenant, compressed, under their content hash."""

from enum import StrEnum

from sqlalchemy import BigInteger, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, TENANT, Base, same_tenant


class DocumentKind(StrEnum):
    """Kinds of stored input documents."""

    MODEL = "model"
    CLUSTER = "cluster"
    PROFILE = "profile"


class DocumentRow(Base):
    """A model, cluster or profile."""

    __tablename__ = "documents"
    __table_args__ = (Index(None, "tenant", "kind", "created_at_us", "content_hash"),)

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
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
    __table_args__ = (
        same_tenant("model_hash", "documents.content_hash"),
        same_tenant("cluster_hash", "documents.content_hash"),
        same_tenant("profile_hash", "documents.content_hash"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    request_hash: Mapped[str] = mapped_column(HASH, primary_key=True)
    model_hash: Mapped[str] = mapped_column(HASH)
    cluster_hash: Mapped[str] = mapped_column(HASH)
    profile_hash: Mapped[str | None] = mapped_column(HASH)
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    rest: Mapped[bytes] = mapped_column(LargeBinary)
    """All other fields of the request."""
