"""All tables; importing them here fills the metadata that migrations compare with."""

from profiles_db.tables.base import HASH, JOB_ID, TENANT, Base, now_us
from profiles_db.tables.documents import DocumentKind, DocumentRow, RequestRow
from profiles_db.tables.jobs import ExecutorRow, JobEventRow, JobPriority, JobRow, JobState, ProvisionalPlanRow
from profiles_db.tables.keys import KeyRow
from profiles_db.tables.plans import PlanRow

__all__ = [
    "HASH",
    "JOB_ID",
    "TENANT",
    "Base",
    "DocumentKind",
    "DocumentRow",
    "ExecutorRow",
    "JobEventRow",
    "JobPriority",
    "JobRow",
    "JobState",
    "KeyRow",
    "PlanRow",
    "ProvisionalPlanRow",
    "RequestRow",
    "now_us",
]
