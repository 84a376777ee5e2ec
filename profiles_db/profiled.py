"""Measurements of blocks, found by exact key or by the newest profile that has any of a model's blocks."""

from collections.abc import Collection, Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from planner.schema import CallMeasurement, Profile
from profiles_db.change import num_changed
from profiles_db.tables import ProfiledCallRow, now_us


def add(session: Session, tenant: str, profile_hash: str, profile: Profile) -> None:
    """Rows of a profile that was stored just now; calls that do not say which block they are of have none."""
    created_at_us = now_us()
    session.add_all(
        ProfiledCallRow(
            tenant=tenant,
            profile_hash=profile_hash,
            place=place,
            cluster=profile.cluster,
            created_at_us=created_at_us,
            **_values(call),
        )
        for place, call in enumerate(profile.calls)
        if call.block is not None
    )


def _values(call: CallMeasurement) -> dict[str, object]:
    provenance = call.provenance
    return {
        **call.model_dump(
            include={"block", "micro_batch", "sequence", "forward_ns", "backward_ns", "recompute_ns"}
        ),
        "device": provenance.device[:200],
        "driver": provenance.driver[:200],
        "torch_version": provenance.torch_version[:100],
        "date": provenance.date[:32],
    }


def newest(session: Session, tenant: str, cluster: str, blocks: Collection[str]) -> str | None:
    """Hash of the profile, last stored, that measured most of these blocks on a cluster of this name; or None."""
    row = ProfiledCallRow
    query = select(row.profile_hash).where(row.tenant == tenant, row.cluster == cluster, row.block.in_(blocks))
    num_blocks, last = func.count(row.block.distinct()), func.max(row.created_at_us)
    ordered = query.group_by(row.profile_hash).order_by(num_blocks.desc(), last.desc(), row.profile_hash)
    return session.scalar(ordered.limit(1))


def calls_at(
    session: Session, tenant: str, cluster: str, block: str, *, micro_batch: int, sequence: int
) -> Sequence[ProfiledCallRow]:
    """Measurements of a block on a cluster at one size, newest first."""
    row = ProfiledCallRow
    query = select(row).where(row.tenant == tenant, row.cluster == cluster, row.block == block)
    at = query.where(row.micro_batch == micro_batch, row.sequence == sequence)
    return session.scalars(at.order_by(row.created_at_us.desc(), row.profile_hash, row.place)).all()


def remove(session: Session, tenant: str, profile_hash: str) -> None:
    """Delete the rows of a profile."""
    row = ProfiledCallRow
    num_changed(session, delete(row).where(row.tenant == tenant, row.profile_hash == profile_hash))
