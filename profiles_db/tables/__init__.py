"""All tables; importing them here fills the metadata that migrations compare with."""

from profiles_db.tables.base import HASH, JOB_ID, TENANT, Base, now_us
from profiles_db.tables.documents import DocumentKind, DocumentRow, RequestRow
from profiles_db.tables.jobs import ExecutorRow, JobEventRow, JobPriority, JobRow, JobState, ProvisionalPlanRow
from profiles_db.tables.keys import KeyRow
from profiles_db.tables.lineages import ActivationRow, Cause, LineageRow, RevisionRow
from profiles_db.tables.measurements import MeasuredPlanRow, MeasurementRow
from profiles_db.tables.plans import PlanRow
from profiles_db.tables.profiled import ProfiledCallRow
from profiles_db.tables.regenerations import (
    ClusterRevisionRow,
    ItemState,
    Notice,
    RegenerationItemRow,
    RegenerationRow,
    RegenerationState,
    Review,
    Verdict,
)
from profiles_db.tables.sessions import SessionRow

__all__ = [
    "HASH",
    "JOB_ID",
    "TENANT",
    "ActivationRow",
    "Base",
    "Cause",
    "ClusterRevisionRow",
    "DocumentKind",
    "DocumentRow",
    "ExecutorRow",
    "ItemState",
    "JobEventRow",
    "JobPriority",
    "JobRow",
    "JobState",
    "KeyRow",
    "LineageRow",
    "MeasuredPlanRow",
    "MeasurementRow",
    "Notice",
    "PlanRow",
    "ProfiledCallRow",
    "ProvisionalPlanRow",
    "RegenerationItemRow",
    "RegenerationRow",
    "RegenerationState",
    "RequestRow",
    "Review",
    "RevisionRow",
    "SessionRow",
    "Verdict",
    "now_us",
]
