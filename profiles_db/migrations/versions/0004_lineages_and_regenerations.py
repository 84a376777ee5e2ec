"""Lineages of plans with their revisions and activations; revisions of clusters and regenerations."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    _create_lineages()
    _create_regenerations()


def downgrade() -> None:
    """Undo; plans stay, what was known of their order is lost."""
    for table in (
        "regeneration_items",
        "regenerations",
        "cluster_revisions",
        "activations",
        "revisions",
        "lineages",
    ):
        op.drop_table(table)


def _create_lineages() -> None:
    op.create_table(
        "lineages",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("lineage_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("model_fingerprint", sa.String(length=71), nullable=False),
        sa.Column("training_hash", sa.String(length=71), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("newest_revision", sa.Integer(), nullable=False),
        sa.Column("active_revision", sa.Integer(), nullable=True),
        sa.Column("num_activations", sa.Integer(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "lineage_id", name=op.f("pk_lineages")),
    )
    op.create_index(
        op.f("ix_lineages_tenant_created_at_us_lineage_id"), "lineages", ["tenant", "created_at_us", "lineage_id"]
    )
    op.create_index(op.f("ix_lineages_tenant_name"), "lineages", ["tenant", "name"])
    op.create_table(
        "activations",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("lineage_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("previous_revision", sa.Integer(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("activated_by", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "lineage_id"],
            ["lineages.tenant", "lineages.lineage_id"],
            name=op.f("fk_activations_tenant_lineage_id_lineages"),
        ),
        sa.PrimaryKeyConstraint("tenant", "lineage_id", "number", name=op.f("pk_activations")),
    )
    op.create_table(
        "revisions",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("lineage_id", sa.String(length=32), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("plan_id", sa.String(length=71), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("changed", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "lineage_id"],
            ["lineages.tenant", "lineages.lineage_id"],
            name=op.f("fk_revisions_tenant_lineage_id_lineages"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "plan_id"], ["plans.tenant", "plans.plan_id"], name=op.f("fk_revisions_tenant_plan_id_plans")
        ),
        sa.PrimaryKeyConstraint("tenant", "lineage_id", "revision", name=op.f("pk_revisions")),
    )
    op.create_index(op.f("ix_revisions_tenant_plan_id"), "revisions", ["tenant", "plan_id"])


def _create_regenerations() -> None:
    op.create_table(
        "cluster_revisions",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster_hash", sa.String(length=71), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "cluster_hash"],
            ["documents.tenant", "documents.content_hash"],
            name=op.f("fk_cluster_revisions_tenant_cluster_hash_documents"),
        ),
        sa.PrimaryKeyConstraint("tenant", "name", "revision", name=op.f("pk_cluster_revisions")),
    )
    op.create_table(
        "regenerations",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("regeneration_id", sa.String(length=32), nullable=False),
        sa.Column("cluster_name", sa.String(length=200), nullable=False),
        sa.Column("cluster_revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("num_items", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("finished_at_us", sa.BigInteger(), nullable=True),
        sa.Column("lease_holder", sa.String(length=64), nullable=False),
        sa.Column("lease_until_us", sa.BigInteger(), nullable=False),
        sa.Column("notice", sa.String(length=16), nullable=False),
        sa.Column("notice_attempts", sa.Integer(), nullable=False),
        sa.Column("notice_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'cancelled')", name=op.f("ck_regenerations_state")),
        sa.ForeignKeyConstraint(
            ["tenant", "cluster_name", "cluster_revision"],
            ["cluster_revisions.tenant", "cluster_revisions.name", "cluster_revisions.revision"],
            name="fk_regenerations_cluster_revisions",
        ),
        sa.PrimaryKeyConstraint("tenant", "regeneration_id", name=op.f("pk_regenerations")),
    )
    op.create_index(op.f("ix_regenerations_state"), "regenerations", ["state"])
    op.create_index(
        op.f("ix_regenerations_tenant_created_at_us_regeneration_id"),
        "regenerations",
        ["tenant", "created_at_us", "regeneration_id"],
    )
    op.create_table(
        "regeneration_items",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("regeneration_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage_id", sa.String(length=32), nullable=True),
        sa.Column("old_revision", sa.Integer(), nullable=True),
        sa.Column("old_plan_id", sa.String(length=71), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("job_id", sa.String(length=200), nullable=True),
        sa.Column("new_plan_id", sa.String(length=71), nullable=True),
        sa.Column("new_revision", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("change", sa.Double(), nullable=True),
        sa.Column("reasons", sa.JSON(), nullable=False),
        sa.Column("review", sa.String(length=16), nullable=False),
        sa.Column("reviewed_by", sa.String(length=64), nullable=True),
        sa.Column("updated_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'submitted', 'done', 'cancelled')", name=op.f("ck_regeneration_items_state")
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "lineage_id"],
            ["lineages.tenant", "lineages.lineage_id"],
            name=op.f("fk_regeneration_items_tenant_lineage_id_lineages"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "new_plan_id"],
            ["plans.tenant", "plans.plan_id"],
            name=op.f("fk_regeneration_items_tenant_new_plan_id_plans"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "old_plan_id"],
            ["plans.tenant", "plans.plan_id"],
            name=op.f("fk_regeneration_items_tenant_old_plan_id_plans"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "regeneration_id"],
            ["regenerations.tenant", "regenerations.regeneration_id"],
            name=op.f("fk_regeneration_items_tenant_regeneration_id_regenerations"),
        ),
        sa.PrimaryKeyConstraint("tenant", "regeneration_id", "number", name=op.f("pk_regeneration_items")),
    )
    op.create_index(
        op.f("ix_regeneration_items_tenant_regeneration_id_state"),
        "regeneration_items",
        ["tenant", "regeneration_id", "state"],
    )
