"""Calls of profiles, by block and cluster."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Profiles that are stored already are found by their hash alone."""
    op.create_table(
        "profiled_calls",
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("profile_hash", sa.String(length=71), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.String(length=200), nullable=False),
        sa.Column("block", sa.String(length=71), nullable=False),
        sa.Column("micro_batch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("forward_ns", sa.BigInteger(), nullable=True),
        sa.Column("backward_ns", sa.BigInteger(), nullable=True),
        sa.Column("recompute_ns", sa.BigInteger(), nullable=True),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("driver", sa.String(length=200), nullable=False),
        sa.Column("torch_version", sa.String(length=100), nullable=False),
        sa.Column("date", sa.String(length=32), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "profile_hash"],
            ["documents.tenant", "documents.content_hash"],
            name=op.f("fk_profiled_calls_tenant_profile_hash_documents"),
        ),
        sa.PrimaryKeyConstraint("tenant", "profile_hash", "place", name=op.f("pk_profiled_calls")),
    )
    op.create_index(
        op.f("ix_profiled_calls_tenant_cluster_block_created_at_us"),
        "profiled_calls",
        ["tenant", "cluster", "block", "created_at_us"],
    )


def downgrade() -> None:
    """Undo; the profiles themselves stay."""
    op.drop_table("profiled_calls")
