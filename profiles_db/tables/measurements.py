"""What training jobs report of their steps, and what their plans predicted."""

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, TENANT, Base

MEASUREMENT_ID = String(32)


class MeasuredPlanRow(Base):
    """A plan that something was reported of: its predictions, and how far reality is from them lately."""

    __tablename__ = "measured_plans"

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    plan_id: Mapped[str] = mapped_column(HASH, primary_key=True)
    """No foreign key: the plan may be a provisional one."""
    name: Mapped[str] = mapped_column(String(200))
    profile_hash: Mapped[str | None] = mapped_column(HASH)
    """Profile that the predictions rest on; None for data sheets."""
    step_time_ns: Mapped[int] = mapped_column(BigInteger)
    """Predicted."""
    peak_bytes: Mapped[int] = mapped_column(BigInteger)
    """Predicted peak of what is allocated on the fullest rank."""
    step_ratio: Mapped[float | None]
    """Measured over predicted, median of the newest reports; None while they are too few."""
    peak_ratio: Mapped[float | None]
    last_at_us: Mapped[int] = mapped_column(BigInteger)
    """Of the newest report, by the clock of the server."""


class MeasurementRow(Base):
    """One report. Rows are added, and never changed."""

    __tablename__ = "measurements"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "plan_id"], ["measured_plans.tenant", "measured_plans.plan_id"]),
        Index(None, "tenant", "created_at_us", "measurement_id"),
        Index(None, "tenant", "plan_id", "created_at_us", "measurement_id"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    measurement_id: Mapped[str] = mapped_column(MEASUREMENT_ID, primary_key=True)
    """Made of plan, run and range (`profiles_db.measurements.id_of`), so that the same report is one row."""
    plan_id: Mapped[str] = mapped_column(HASH)
    run: Mapped[str] = mapped_column(String(100))
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    num_ranks: Mapped[int] = mapped_column(BigInteger)
    step_time_ns: Mapped[int] = mapped_column(BigInteger)
    step_time_p99_ns: Mapped[int | None] = mapped_column(BigInteger)
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    device: Mapped[str] = mapped_column(String(200))
    torch_version: Mapped[str] = mapped_column(String(100))
    measured_at_us: Mapped[int] = mapped_column(BigInteger)
    """By the clock of the job."""
    submitted_by: Mapped[str] = mapped_column(String(64))
    created_at_us: Mapped[int] = mapped_column(BigInteger)
