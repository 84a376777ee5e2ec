"""Jobs: priorities, cancelled and parked jobs, provisional plans; executors say what they are.

SQLite cannot change a check constraint in place, and a table that others refer to cannot be dropped: jobs and their
events are set aside, made anew and put back.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_STATES_BEFORE = "'queued', 'running', 'succeeded', 'failed'"
_STATES = f"{_STATES_BEFORE}, 'cancelled', 'parked'"
_JOB_COLUMNS = (
    "job_id, tenant, request_hash, planner_version, attempt, submitted_by, fence, num_interruptions, plan_id, "
    "problem, created_at_us, started_at_us, finished_at_us"
)


def upgrade() -> None:
    """Apply; jobs that wait are released, since the queue has them all."""
    _set_aside()
    _create_jobs(
        _STATES,
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("is_released", sa.Boolean(), nullable=False),
    )
    _put_back("state, priority, is_released", "state, 0, true")
    op.create_table(
        "provisional_plans",
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_provisional_plans_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "plan_id", name=op.f("pk_provisional_plans")),
    )
    _index("provisional_plans", "tenant", "plan_id")
    op.drop_table("executors")
    _create_executors(
        sa.Column("application_version", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("num_slots", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Undo; cancelled and parked jobs have failed."""
    op.drop_table("executors")
    _create_executors()
    op.drop_table("provisional_plans")
    _set_aside()
    _create_jobs(_STATES_BEFORE)
    _put_back("state", "CASE WHEN state IN ('cancelled', 'parked') THEN 'failed' ELSE state END")


def _set_aside() -> None:
    for table in ("jobs", "job_events"):
        op.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
    op.drop_table("job_events")
    op.drop_table("jobs")


def _put_back(columns: str, values: str) -> None:
    op.execute(f"INSERT INTO jobs ({_JOB_COLUMNS}, {columns}) SELECT {_JOB_COLUMNS}, {values} FROM kept_jobs")
    op.execute("INSERT INTO job_events SELECT * FROM kept_job_events")
    for table in ("jobs", "job_events"):
        op.drop_table(f"kept_{table}")


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _create_jobs(states: str, *added: sa.Column[Any]) -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("planner_version", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        *added,
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("num_interruptions", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=True),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(f"state IN ({states})", name=op.f("ck_jobs_state")),
        sa.ForeignKeyConstraint(
            ["tenant", "request_hash"],
            ["requests.tenant", "requests.request_hash"],
            name=op.f("fk_jobs_tenant_request_hash_requests"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "plan_id"],
            ["plans.tenant", "plans.plan_id"],
            name=op.f("fk_jobs_tenant_plan_id_plans"),
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sa.UniqueConstraint(
            "tenant",
            "request_hash",
            "planner_version",
            "attempt",
            name=op.f("uq_jobs_tenant_request_hash_planner_version_attempt"),
        ),
    )
    _index("jobs", "tenant", "created_at_us", "job_id")
    _index("jobs", "state")
    _index("jobs", "submitted_by", "state")
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_events_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "sequence", name=op.f("pk_job_events")),
    )


def _create_executors(*added: sa.Column[Any]) -> None:
    op.create_table(
        "executors",
        sa.Column("executor_id", sa.String(length=64), nullable=False),
        sa.Column("heartbeat_at_us", sa.BigInteger(), nullable=False),
        *added,
        sa.PrimaryKeyConstraint("executor_id", name=op.f("pk_executors")),
    )
