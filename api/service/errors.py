"""Errors of the use cases that the contract itself does not know."""

from typing import Any

from planner.schema.errors import ShardwrightError

PLANNER_REPLACED = "planner_replaced"
"""Code of jobs that another version of the planner was to run; another job plans their request."""


class NotFound(ShardwrightError):
    """Nothing is stored under this identity."""

    code = "not_found"

    def __init__(self, what: str, identity: str) -> None:
        super().__init__(f"there is no {what} {identity}")


class Unauthenticated(ShardwrightError):
    """The caller does not say, or cannot prove, who it is."""

    code = "unauthenticated"


class Forbidden(ShardwrightError):
    """The caller is known and may not do this."""

    code = "forbidden"


class IdentityProviderUnavailable(ShardwrightError):
    """Nobody can be recognised, because the identity provider does not answer."""

    code = "identity_provider_unavailable"


class InvalidTenant(ShardwrightError):
    """A name that no tenant can have."""

    code = "invalid_tenant"


class TooManyJobs(ShardwrightError):
    """The caller has as many unfinished jobs as it may have."""

    code = "too_many_jobs"


class NeedsPostgresql(ShardwrightError):
    """Several processes cannot share a SQLite file."""

    code = "needs_postgresql"


class AmbiguousLineage(ShardwrightError):
    """Several lineages have the name."""

    code = "ambiguous_lineage"


class NoActivePlan(ShardwrightError):
    """A lineage whose plans are all infeasible."""

    code = "no_active_plan"


class NoDecisions(ShardwrightError):
    """An infeasible plan, which decides nothing."""

    code = "no_decisions"

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"plan {plan_id} is infeasible and decides nothing; ask for a solve of another request")


class NotActivatable(ShardwrightError):
    """A revision that nobody could train with, or that has been decided about."""

    code = "not_activatable"


class NotRetryable(ShardwrightError):
    """A job that has nothing to try again."""

    code = "not_retryable"


class ChangedMeanwhile(ShardwrightError):
    """Something is no longer what the caller saw when it decided."""

    code = "changed_meanwhile"


class VersionMissing(ShardwrightError):
    """The caller does not say what it saw when it decided."""

    code = "version_missing"


class InvalidJson(ShardwrightError):
    """The body is not JSON (RFC 8259) at all."""

    code = "invalid_json"


class TooManyValues(ShardwrightError):
    """The body has more JSON values than any document needs."""

    code = "too_many_values"


class UnknownReference(ShardwrightError):
    """A request refers to a document that is not stored."""

    code = "unknown_reference"

    def __init__(self, path: str, content_hash: str, *, remedy: str | None = None) -> None:
        how = remedy or f"send it inline, or post it to /v1/{path}s first"
        super().__init__(f"{path}: no {path.replace('_', ' ')} {content_hash} is stored here; {how}")
        self.path = path


class JobFailed(ShardwrightError):
    """A job ended without a plan; `permanent` failures would come again with the same request."""

    def __init__(self, code: str, message: str, *, path: str | None = None, permanent: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.path = path
        self.permanent = permanent

    def as_json(self) -> dict[str, Any]:
        """What the row of the job keeps."""
        return {"code": self.code, "message": str(self), "path": self.path, "permanent": self.permanent}


class PlannerKilled(ShardwrightError):
    """A signal from outside ended the planner of a job: the job may be started again."""

    code = "planner_killed"

    def __init__(self, number: int) -> None:
        super().__init__(f"the planner was killed by signal {number}")


class Interrupted(BaseException):
    """A run ends without a result: the process stops, another one has taken the job over, or it was cancelled.

    Not an `Exception`: the durable queue must leave the job as it is, to be run again.
    """
