"""Tenants and API keys: every stored row belongs to a tenant; what was there before belongs to `default`.

Primary keys change, which SQLite cannot do in place: rows are set aside, all tables made anew, rows put back.
"""

from importlib import import_module

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_first = import_module("profiles_db.migrations.versions.0001_first_schema")

_COLUMNS = {
    "documents": "content_hash, kind, name, size_bytes, created_at_us, body",
    "requests": "request_hash, model_hash, cluster_hash, profile_hash, created_at_us, rest",
    "plans": (
        "plan_id, request_hash, model_hash, cluster_hash, planner_version, name, outcome, world_size, "
        "step_time_ns, reserved_bytes, gap, created_at_us, body"
    ),
    "jobs": (
        "job_id, request_hash, planner_version, attempt, state, fence, num_interruptions, plan_id, problem, "
        "created_at_us, started_at_us, finished_at_us"
    ),
    "job_events": "job_id, sequence, at_us, data",
    "executors": "executor_id, heartbeat_at_us",
}
"""What both shapes have, parents before children."""


def _set_aside(only: str = "true") -> None:
    for table in _COLUMNS:
        condition = only if table in ("documents", "requests", "plans", "jobs") else "true"
        op.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table} WHERE {condition}")


def _put_back(added: dict[str, tuple[str, str]]) -> None:
    for table, columns in _COLUMNS.items():
        names, values = added.get(table, ("", ""))
        op.execute(f"INSERT INTO {table} ({names}{columns}) SELECT {values}{columns} FROM kept_{table}")
        op.drop_table(f"kept_{table}")


def _same_tenant(table: str, column: str, referred: str) -> sa.ForeignKeyConstraint:
    referred_table, _, _ = referred.partition(".")
    name = op.f(f"fk_{table}_tenant_{column}_{referred_table}")
    return sa.ForeignKeyConstraint(["tenant", column], [f"{referred_table}.tenant", referred], name=name)


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def upgrade() -> None:
    """Apply."""
    _set_aside()
    _first.downgrade()
    _create_documents()
    _create_plans()
    _create_jobs()
    _create_keys()
    tenant = ("tenant, ", "'default', ")
    _put_back(
        {
            "documents": tenant,
            "requests": tenant,
            "plans": tenant,
            "jobs": ("tenant, submitted_by, ", "tenant, 'anonymous', "),
        }
    )


def downgrade() -> None:
    """Undo; only the tenant `default` is kept, since without tenants two could not have the same document."""
    _set_aside("tenant = 'default'")
    op.execute("DELETE FROM kept_job_events WHERE job_id NOT IN (SELECT job_id FROM kept_jobs)")
    for table in ("api_keys", "job_events", "jobs", "plans", "requests", "documents", "executors"):
        op.drop_table(table)
    _first.upgrade()
    _put_back({"jobs": ("tenant, ", "tenant, ")})


def _create_documents() -> None:
    op.create_table(
        "documents",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("content_hash", sa.String(length=71), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "content_hash", name=op.f("pk_documents")),
    )
    _index("documents", "tenant", "kind", "created_at_us", "content_hash")
    op.create_table(
        "executors",
        sa.Column("executor_id", sa.String(length=64), nullable=False),
        sa.Column("heartbeat_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("executor_id", name=op.f("pk_executors")),
    )
    op.create_table(
        "requests",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("model_hash", sa.String(length=71), nullable=False),
        sa.Column("cluster_hash", sa.String(length=71), nullable=False),
        sa.Column("profile_hash", sa.String(length=71), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("rest", sa.LargeBinary(), nullable=False),
        _same_tenant("requests", "model_hash", "documents.content_hash"),
        _same_tenant("requests", "cluster_hash", "documents.content_hash"),
        _same_tenant("requests", "profile_hash", "documents.content_hash"),
        sa.PrimaryKeyConstraint("tenant", "request_hash", name=op.f("pk_requests")),
    )


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("tenant", sa.String(length=63), nullable=False),
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
        _same_tenant("plans", "request_hash", "requests.request_hash"),
        _same_tenant("plans", "model_hash", "documents.content_hash"),
        _same_tenant("plans", "cluster_hash", "documents.content_hash"),
        sa.PrimaryKeyConstraint("tenant", "plan_id", name=op.f("pk_plans")),
    )
    _index("plans", "tenant", "created_at_us", "plan_id")
    _index("plans", "tenant", "model_hash", "created_at_us")
    _index("plans", "tenant", "cluster_hash", "created_at_us")
    _index("plans", "tenant", "request_hash")


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("planner_version", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("num_interruptions", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=True),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name=op.f("ck_jobs_state")),
        _same_tenant("jobs", "plan_id", "plans.plan_id"),
        _same_tenant("jobs", "request_hash", "requests.request_hash"),
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


def _create_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("scopes", sa.String(length=64), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("previous_sha256", sa.String(length=64), nullable=True),
        sa.Column("previous_until_us", sa.BigInteger(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("rotated_at_us", sa.BigInteger(), nullable=True),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at_us", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
    )
    _index("api_keys", "tenant", "created_at_us", "key_id")
