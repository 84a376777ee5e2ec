"""What stored profiles measured of which blocks, so that the newest of a block on a cluster is found."""

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, TENANT, Base, same_tenant


class ProfiledCallRow(Base):
    """One call of a profile that says which block it is of. Rows go with their profile."""

    __tablename__ = "profiled_calls"
    __table_args__ = (
        same_tenant("profile_hash", "documents.content_hash"),
        Index(None, "tenant", "cluster", "block", "created_at_us"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    profile_hash: Mapped[str] = mapped_column(HASH, primary_key=True)
    place: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Index in `Profile.calls`."""
    cluster: Mapped[str] = mapped_column(String(200))
    block: Mapped[str] = mapped_column(HASH)
    micro_batch: Mapped[int] = mapped_column(BigInteger)
    sequence: Mapped[int] = mapped_column(BigInteger)
    forward_ns: Mapped[int | None] = mapped_column(BigInteger)
    backward_ns: Mapped[int | None] = mapped_column(BigInteger)
    recompute_ns: Mapped[int | None] = mapped_column(BigInteger)
    device: Mapped[str] = mapped_column(String(200))
    driver: Mapped[str] = mapped_column(String(200))
    torch_version: Mapped[str] = mapped_column(String(100))
    date: Mapped[str] = mapped_column(String(32))
    """Of the measurement, as the profile gives it."""
    created_at_us: Mapped[int] = mapped_column(BigInteger)
