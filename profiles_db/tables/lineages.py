"""Lineages: plans that take each other's place for one training, and which of them is active."""

from enum import StrEnum

from sqlalchemy import JSON, BigInteger, ForeignKeyConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from profiles_db.tables.base import HASH, TENANT, Base, same_tenant

LINEAGE_ID = String(32)
SUBMITTER = String(64)


class Cause(StrEnum):
    """What brought a revision about."""

    REQUESTED = "requested"
    """Somebody added a plan."""
    REGENERATION = "regeneration"
    """The cluster changed."""


class LineageRow(Base):
    """A name, a module and a training; `version` rises with every change, so that nobody acts on an old view."""

    __tablename__ = "lineages"
    __table_args__ = (
        Index(None, "tenant", "created_at_us", "lineage_id"),
        Index(None, "tenant", "name"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    lineage_id: Mapped[str] = mapped_column(LINEAGE_ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    model_fingerprint: Mapped[str] = mapped_column(HASH)
    training_hash: Mapped[str] = mapped_column(HASH)
    """Of the workload without what may change from plan to plan (`api.service.lineages.training_hash`)."""
    version: Mapped[int]
    newest_revision: Mapped[int]
    active_revision: Mapped[int | None]
    num_activations: Mapped[int]
    created_at_us: Mapped[int] = mapped_column(BigInteger)


class RevisionRow(Base):
    """A plan in a lineage. Rows are added, and never changed."""

    __tablename__ = "revisions"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "lineage_id"], ["lineages.tenant", "lineages.lineage_id"]),
        same_tenant("plan_id", "plans.plan_id"),
        Index(None, "tenant", "plan_id"),
    )

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    lineage_id: Mapped[str] = mapped_column(LINEAGE_ID, primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    plan_id: Mapped[str] = mapped_column(HASH)
    cause: Mapped[str] = mapped_column(String(16))
    changed: Mapped[list[str]] = mapped_column(JSON)
    """Which inputs differ from those of the revision before."""
    why: Mapped[str] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(SUBMITTER)
    created_at_us: Mapped[int] = mapped_column(BigInteger)


class ActivationRow(Base):
    """A move of the active pointer. Rows are added, and never changed."""

    __tablename__ = "activations"
    __table_args__ = (ForeignKeyConstraint(["tenant", "lineage_id"], ["lineages.tenant", "lineages.lineage_id"]),)

    tenant: Mapped[str] = mapped_column(TENANT, primary_key=True)
    lineage_id: Mapped[str] = mapped_column(LINEAGE_ID, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    revision: Mapped[int]
    previous_revision: Mapped[int | None]
    why: Mapped[str] = mapped_column(Text)
    activated_by: Mapped[str] = mapped_column(SUBMITTER)
    created_at_us: Mapped[int] = mapped_column(BigInteger)
