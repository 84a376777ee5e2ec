"""Measurements of training jobs, and the plans that they hold to account."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "measured_plans",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("profile_hash", sa.String(length=71), nullable=True),
        sa.Column("step_time_ns", sa.BigInteger(), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=False),
        sa.Column("step_ratio", sa.Double(), nullable=True),
        sa.Column("peak_ratio", sa.Double(), nullable=True),
        sa.Column("last_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "plan_id", name=op.f("pk_measured_plans")),
    )
    op.create_table(
        "measurements",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("measurement_id", sa.String(length=32), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=False),
        sa.Column("run", sa.String(length=100), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("num_ranks", sa.BigInteger(), nullable=False),
        sa.Column("step_time_ns", sa.BigInteger(), nullable=False),
        sa.Column("step_time_p99_ns", sa.BigInteger(), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("torch_version", sa.String(length=100), nullable=False),
        sa.Column("measured_at_us", sa.BigInteger(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "plan_id"],
            ["measured_plans.tenant", "measured_plans.plan_id"],
            name=op.f("fk_measurements_tenant_plan_id_measured_plans"),
        ),
        sa.PrimaryKeyConstraint("tenant", "measurement_id", name=op.f("pk_measurements")),
    )
    op.create_index(
        op.f("ix_measurements_tenant_created_at_us_measurement_id"),
        "measurements",
        ["tenant", "created_at_us", "measurement_id"],
    )
    op.create_index(
        op.f("ix_measurements_tenant_plan_id_created_at_us_measurement_id"),
        "measurements",
        ["tenant", "plan_id", "created_at_us", "measurement_id"],
    )


def downgrade() -> None:
    """Undo; what was reported is lost."""
    op.drop_table("measurements")
    op.drop_table("measured_plans")
