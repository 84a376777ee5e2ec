"""Revisions of clusters, and the plans that are made again because of them."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKeyConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, JOB_ID, TENANT, Base, same_tenant
from profiles_db.tables.lineages import LINEAGE_ID, SUBMITTER

REGENERATION_ID = String(32)


class RegenerationState(StrEnum):
    """Life of a regeneration; the last two are final."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """Life of one plan that is made again; the last two are final."""

    WAITING = "waiting"
    SUBMITTED = "submitted"
    DONE = "done"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """The new plan beside the old one."""

    UNCHANGED = "unchanged"
    BETTER = "better"
    WORSE = "worse"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    """There is no new plan: the search was refused or failed."""


class Review(StrEnum):
    """What became of a new revision."""

    NONE = "none"
    """There is nothing to activate."""
    ACTIVATED = "activated"
    """By the policy."""
    WAITING = "waiting"
    """For a person."""
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Notice(StrEnum):
    """What the webhook was told of a regeneration that has ended."""

    NONE = "none"
    """It goes on, or there is no webhook."""
    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class ClusterRevisionRow(Base):
    """What a cluster of a name was from a moment on. Rows are added, and never changed."""

    __tablename__ = "cluster_revisions"
    __table_args__ = (same_tenant("cluster_hash", "documents.content_hash"),)

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_hash: Mapped[str] = mapped_column(HASH)
    changes: Mapped[list[str]] = mapped_column(JSON)
    """In words."""
    why: Mapped[str] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(SUBMITTER)
    created_at_us: Mapped[int] = mapped_column(BigInteger)


class RegenerationRow(Base):
    """Plans made again for one revision of a cluster. The process that holds the lease advances it."""

    __tablename__ = "regenerations"
    __table_args__ = (
        CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
        ForeignKeyConstraint(
            ["tenant", "cluster_name", "cluster_revision"],
            ["cluster_revisions.tenant", "cluster_revisions.name", "cluster_revisions.revision"],
            name="fk_regenerations_cluster_revisions",
        ),
        Index(None, "tenant", "created_at_us", "regeneration_id"),
        Index(None, "state"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    regeneration_id: Mapped[str] = mapped_column(REGENERATION_ID, primary_key=True)
    cluster_name: Mapped[str] = mapped_column(String(200))
    cluster_revision: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    policy: Mapped[dict[str, Any]] = mapped_column(JSON)
    num_items: Mapped[int]
    created_by: Mapped[str] = mapped_column(SUBMITTER)
    created_at_us: Mapped[int] = mapped_column(BigInteger)
    finished_at_us: Mapped[int | None] = mapped_column(BigInteger)
    lease_holder: Mapped[str] = mapped_column(String(64))
    lease_until_us: Mapped[int] = mapped_column(BigInteger)
    notice: Mapped[str] = mapped_column(String(16))
    notice_attempts: Mapped[int]
    notice_at_us: Mapped[int] = mapped_column(BigInteger)
    """Not tried again before."""


class RegenerationItemRow(Base):
    """One plan that is made again."""

    __tablename__ = "regeneration_items"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'submitted', 'done', 'cancelled')", name="state"),
        ForeignKeyConstraint(
            ["tenant", "regeneration_id"], ["regenerations.tenant", "regenerations.regeneration_id"]
        ),
        ForeignKeyConstraint(["tenant", "lineage_id"], ["lineages.tenant", "lineages.lineage_id"]),
        same_tenant("old_plan_id", "plans.plan_id"),
        same_tenant("new_plan_id", "plans.plan_id"),
        Index(None, "tenant", "regeneration_id", "state"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    regeneration_id: Mapped[str] = mapped_column(REGENERATION_ID, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    lineage_id: Mapped[str | None] = mapped_column(LINEAGE_ID)
    """None where no lineage holds the old plan."""
    old_revision: Mapped[int | None]
    old_plan_id: Mapped[str] = mapped_column(HASH)
    state: Mapped[str] = mapped_column(String(16))
    job_id: Mapped[str | None] = mapped_column(JOB_ID)
    new_plan_id: Mapped[str | None] = mapped_column(HASH)
    new_revision: Mapped[int | None]
    verdict: Mapped[str | None] = mapped_column(String(16))
    change: Mapped[float | None]
    """Step time of the new plan over that of the old one, less one."""
    reasons: Mapped[list[str]] = mapped_column(JSON)
    review: Mapped[str] = mapped_column(String(16))
    reviewed_by: Mapped[str | None] = mapped_column(SUBMITTER)
    updated_at_us: Mapped[int] = mapped_column(BigInteger)
