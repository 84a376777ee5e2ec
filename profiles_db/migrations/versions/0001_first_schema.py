"""First schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "documents",
        sa.Column("content_hash", sa.String(length=71), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("content_hash", name=op.f("pk_documents")),
    )
    op.create_index(
        op.f("ix_documents_kind_created_at_us_content_hash"), "documents", ["kind", "created_at_us", "content_hash"]
    )

    op.create_table(
        "executors",
        sa.Column("executor_id", sa.String(length=64), nullable=False),
        sa.Column("heartbeat_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("executor_id", name=op.f("pk_executors")),
    )
    op.create_table(
        "requests",
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("model_hash", sa.String(length=71), nullable=False),
        sa.Column("cluster_hash", sa.String(length=71), nullable=False),
        sa.Column("profile_hash", sa.String(length=71), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("rest", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_hash"], ["documents.content_hash"], name=op.f("fk_requests_cluster_hash_documents")
        ),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["documents.content_hash"], name=op.f("fk_requests_model_hash_documents")
        ),
        sa.ForeignKeyConstraint(
            ["profile_hash"], ["documents.content_hash"], name=op.f("fk_requests_profile_hash_documents")
        ),
        sa.PrimaryKeyConstraint("request_hash", name=op.f("pk_requests")),
    )
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.String(length=71), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("model_hash", sa.String(length=71), nullable=False),
        sa.Column("cluster_hash", sa.String(length=71), nullable=False),
        sa.Column("planner_version", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("step_time_ns", sa.BigInteger(), nullable=True),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gap", sa.Double(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_hash"], ["documents.content_hash"], name=op.f("fk_plans_cluster_hash_documents")
        ),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["documents.content_hash"], name=op.f("fk_plans_model_hash_documents")
        ),
        sa.ForeignKeyConstraint(
            ["request_hash"], ["requests.request_hash"], name=op.f("fk_plans_request_hash_requests")
        ),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_cluster_hash_created_at_us"), "plans", ["cluster_hash", "created_at_us"])
    op.create_index(op.f("ix_plans_created_at_us_plan_id"), "plans", ["created_at_us", "plan_id"])
    op.create_index(op.f("ix_plans_model_hash_created_at_us"), "plans", ["model_hash", "created_at_us"])
    op.create_index(op.f("ix_plans_request_hash"), "plans", ["request_hash"])

    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("planner_version", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("num_interruptions", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=True),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name=op.f("ck_jobs_state")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_jobs_plan_id_plans")),
        sa.ForeignKeyConstraint(
            ["request_hash"], ["requests.request_hash"], name=op.f("fk_jobs_request_hash_requests")
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
    op.create_index(op.f("ix_jobs_created_at_us_job_id"), "jobs", ["created_at_us", "job_id"])
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"])

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


def downgrade() -> None:
    """Undo."""
    op.drop_table("job_events")
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_created_at_us_job_id"), table_name="jobs")

    op.drop_table("jobs")
    op.drop_index(op.f("ix_plans_request_hash"), table_name="plans")
    op.drop_index(op.f("ix_plans_model_hash_created_at_us"), table_name="plans")
    op.drop_index(op.f("ix_plans_created_at_us_plan_id"), table_name="plans")
    op.drop_index(op.f("ix_plans_cluster_hash_created_at_us"), table_name="plans")

    op.drop_table("plans")
    op.drop_table("requests")
    op.drop_table("executors")
    op.drop_index(op.f("ix_documents_kind_created_at_us_content_hash"), table_name="documents")

    op.drop_table("documents")
