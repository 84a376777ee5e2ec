"""Plans."""

from sqlalchemy import BigInteger, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, TENANT, Base, same_tenant


class PlanRow(Base):
    """A plan and the columns that lists show and filter by."""

    __tablename__ = "plans"
    __table_args__ = (
        same_tenant("request_hash", "requests.request_hash"),
        same_tenant("model_hash", "documents.content_hash"),
        same_tenant("cluster_hash", "documents.content_hash"),
        Index(None, "tenant", "created_at_us", "plan_id"),
        Index(None, "tenant", "model_hash", "created_at_us"),
        Index(None, "tenant", "cluster_hash", "created_at_us"),
        Index(None, "tenant", "request_hash"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    plan_id: Mapped[str] = mapped_column(HASH, primary_key=True)
    request_hash: Mapped[str] = mapped_column(HASH)
    model_hash: Mapped[str] = mapped_column(HASH)
    cluster_hash: Mapped[str] = mapped_column(HASH)
    planner_version: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    outcome: Mapped[str] = mapped_column(String(16))
    world_size: Mapped[int] = mapped_column(BigInteger)
    step_time_ns: Mapped[int | None] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    gap: Mapped[float | None]
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)
