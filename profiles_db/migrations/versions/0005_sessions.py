"""Sessions of the dashboard."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("secret_sha256", sa.String(length=64), nullable=True),
        sa.Column("caller", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.key_id"], name=op.f("fk_sessions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at_us"), "sessions", ["expires_at_us"])


def downgrade() -> None:
    """Undo; people log in again."""
    op.drop_table("sessions")
