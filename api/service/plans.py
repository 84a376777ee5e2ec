"""Ask for plans and find them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.service.callers import Caller
from api.service.envelopes import with_envelope
from api.service.errors import NotFound, NotRetryable, TooManyJobs, UnknownReference
from api.service.limits import RequestLimits
from api.service.metrics import Metrics
from api.service.parsing import SHA256, parse_document, parse_json
from api.service.recent import RecentBodies
from api.service.signing import Signer
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant
from planner.schema import ClusterDescription, ModelDescription, PlanRequest, Profile, block_hash
from profiles_db import documents, jobs, plans, profiled, provisional, requests
from profiles_db.engine import Database
from profiles_db.pages import Page
from profiles_db.tables import DocumentKind, JobPriority, JobRow, JobState, PlanRow

_NEWEST = "newest"
"""In place of a profile: the newest one of the model's blocks on the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    """Which plans a list shows, and in which order; None means all."""

    name: str | None = None
    """Any part of it, in any case."""
    model: str | None = None
    """Hash."""
    model_name: str | None = None
    cluster: str | None = None
    """Hash."""
    cluster_name: str | None = None
    outcome: str | None = None
    sort: str = "created"
    """One of `profiles_db.plans.SORTABLE`."""
    is_descending: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlan:
    """A plan in a list, with the names of what it is for."""

    row: PlanRow
    model_name: str
    cluster_name: str


class PlanService:
    """Requests in, plans out. `enqueue` hands a job to the durable queue; handing one over again does nothing."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        enqueue: Callable[[JobRow], None],
        *,
        max_jobs_per_key: int,
        limits: RequestLimits,
        signer: Signer | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._enqueue = enqueue
        self._max_jobs_per_key = max_jobs_per_key
        self._limits = limits
        self._signer = signer
        self._recent = RecentBodies()

    def submit(self, caller: Caller, body: bytes, priority: JobPriority = JobPriority.LAUNCHER) -> JobRow:
        """The job that answers a request: an earlier one where it has the plan, a new one else. `priority` says who
        waits; a job that waits already becomes as urgent as that.

        Raises:
            InvalidJson, InvalidDocument, UnknownReference: the body is not a request.
            TooManyJobs: it needs a job, and the caller has as many as it may have.
        """
        known = self._known_plan(caller.tenant, body)
        if known is not None:
            self._metrics.plan_requests.labels("plan").inc()
            return known
        job = self.submit_request(caller, self.parse(caller.tenant, body), priority)
        if _NEWEST.encode() not in body:  # which profile that is changes
            self._recent.put(caller.tenant, body, job.request_hash)
        return job

    def _known_plan(self, tenant: str, body: bytes) -> JobRow | None:
        """The job of a body that was read before and has its plan by now."""
        request_hash = self._recent.get(tenant, body)
        if request_hash is None:
            return None
        with self._database.read() as session:
            job = jobs.latest(session, tenant, request_hash, PLANNER_VERSION)
        return job if job is not None and job.plan_id is not None else None

    def submit_request(
        self, caller: Caller, request: PlanRequest, priority: JobPriority = JobPriority.LAUNCHER
    ) -> JobRow:
        """As `submit`, of a request that is no body.

        Raises:
            TooManyJobs: it needs a job, and the caller has as many as it may have.
            UnknownReference: it names a plan to start from that is not stored.
            InvalidDocument: it asks for more than this server allows.
        """
        self._limits.check(request)
        self._require_warm_start(caller.tenant, request.warm_start)
        job = self._job_of(caller, request, priority)
        if not JobState(job.state).is_final:
            self._enqueue(job)
        return job

    def _require_warm_start(self, tenant: str, plan_id: str | None) -> None:
        with self._database.read() as session:
            if plan_id is not None and plans.get_row(session, tenant, plan_id) is None:
                raise UnknownReference("warm_start", plan_id, remedy="name a plan of yours, or leave it out")

    def parse(self, tenant: str, body: bytes) -> PlanRequest:
        """Read a request; parts given as `sha256:...` are taken from the store."""
        value = parse_json(body)
        if isinstance(value, dict):
            self.resolve(tenant, value)
        return parse_document(PlanRequest, value)

    def resolve(self, tenant: str, value: dict[str, Any]) -> None:
        """Put stored documents in place of the references in the JSON of a request.

        Raises:
            UnknownReference: one is not stored.
        """
        for kind, document_type in documents.DOCUMENT_TYPES.items():
            reference = value.get(kind.value)
            if not isinstance(reference, str) or not SHA256.fullmatch(reference):
                continue
            with self._database.read() as session:
                stored = documents.get_bytes(session, tenant, kind, reference)
            if stored is None:
                raise UnknownReference(kind.value, reference)
            value[kind.value] = document_type.from_json(stored, source=f"stored {kind} {reference}")
        if value.get("profile") == _NEWEST:
            value["profile"] = self._newest_profile(tenant, value)

    def _newest_profile(self, tenant: str, value: dict[str, Any]) -> Profile:
        model = parse_document(ModelDescription, value.get("model"))
        cluster = parse_document(ClusterDescription, value.get("cluster"))
        blocks = {block_hash(model, kind) for kind in model.kinds}
        with self._database.read() as session:
            found = profiled.newest(session, tenant, cluster.name, blocks)
            stored = None if found is None else documents.get_bytes(session, tenant, DocumentKind.PROFILE, found)
        if stored is None:
            remedy = f"post one of blocks of {model.name!r} whose cluster is {cluster.name!r} to /v1/profiles first"
            raise UnknownReference("profile", _NEWEST, remedy=remedy)
        return Profile.from_json(stored, source=f"stored profile {found}")

    def _job_of(self, caller: Caller, request: PlanRequest, priority: JobPriority) -> JobRow:
        request_hash = request.content_hash()
        with self._database.read() as session:
            known = jobs.latest(session, caller.tenant, request_hash, PLANNER_VERSION)
        if known is not None and not _may_be_tried_again(known):
            self._metrics.plan_requests.labels("plan" if known.plan_id else "job").inc()
            return self._at_least(known, priority)
        self._metrics.plan_requests.labels("nothing").inc()
        with self._database.write() as session:
            if jobs.num_unfinished(session, caller.submitted_by) >= self._max_jobs_per_key:
                raise TooManyJobs(
                    f"{caller.name!r} has {self._max_jobs_per_key} unfinished jobs; wait for some, or cancel them"
                )
            requests.put(session, caller.tenant, request, request_hash)
            return jobs.add(
                session,
                caller.tenant,
                request_hash,
                PLANNER_VERSION,
                attempt=1 if known is None else known.attempt + 1,
                submitted_by=caller.submitted_by,
                priority=priority,
            )

    def _at_least(self, job: JobRow, priority: JobPriority) -> JobRow:
        if JobState(job.state).is_final or job.priority <= priority:
            return job
        with self._database.write() as session:
            jobs.raise_priority(session, job.job_id, priority)
        job.priority = priority
        return job

    def get(self, tenant: str, plan_id: str) -> bytes:
        """JSON of a plan, proven or provisional, signed where there is a key.

        Raises:
            NotFound: the tenant has no such plan.
        """
        with self._database.read() as session:
            body = plans.get_bytes(session, tenant, plan_id) or provisional.get_bytes(session, tenant, plan_id)
        if body is None:
            raise NotFound("plan", plan_id)
        return body if self._signer is None else with_envelope(body, signature=self._signer.sign(plan_id))

    def require(self, tenant: str, plan_id: str) -> None:
        """Whether there is such a plan, without reading its body; errors of `get`."""
        with self._database.read() as session:
            if plans.get_row(session, tenant, plan_id) is None and not provisional.is_stored(
                session, tenant, plan_id
            ):
                raise NotFound("plan", plan_id)

    def tag(self, plan_id: str) -> str:
        """Names the bytes that `get` gives: another key gives others."""
        return plan_id if self._signer is None else f"{plan_id}.{self._signer.key_id}"

    def page(self, tenant: str, chosen: PlanFilter, *, cursor: str | None, limit: int) -> Page[ListedPlan]:
        """Plans in the order that is chosen.

        Raises:
            InvalidCursor: the cursor is not from an earlier page in this order.
        """
        with self._database.read() as session:
            found = plans.page(
                session,
                tenant,
                name=chosen.name,
                model_hash=chosen.model,
                model_name=chosen.model_name,
                cluster_hash=chosen.cluster,
                cluster_name=chosen.cluster_name,
                outcome=chosen.outcome,
                sort=chosen.sort,
                is_descending=chosen.is_descending,
                cursor=cursor,
                limit=limit,
            )
            hashes = {digest for row in found.items for digest in (row.model_hash, row.cluster_hash)}
            names = documents.names(session, tenant, hashes)
        items = [
            ListedPlan(row=row, model_name=names[row.model_hash], cluster_name=names[row.cluster_hash])
            for row in found.items
        ]
        return Page(items=items, next=found.next)

    def retry(self, caller: Caller, job_id: str) -> JobRow:
        """Ask again for what a job had no plan for; returns the new job.

        Raises:
            NotFound: the tenant has no such job.
            NotRetryable: it goes on, has its plan, or the same request would fail again.
            TooManyJobs, InvalidDocument, UnknownReference: as for any request.
        """
        with self._database.read() as session:
            job = jobs.get(session, caller.tenant, job_id)
            if job is None:
                raise NotFound("job", job_id)
            if not _may_be_tried_again(job):
                why = "its request would fail again" if job.problem else f"it is {job.state}"
                raise NotRetryable(f"job {job_id} cannot be tried again: {why}")
            request = requests.get(session, caller.tenant, job.request_hash)
        assert request is not None, "foreign keys keep the request of a job"
        return self.submit_request(caller, request, JobPriority(job.priority))


def _may_be_tried_again(job: JobRow) -> bool:
    is_without_plan = JobState(job.state).is_final and job.plan_id is None
    return is_without_plan and not (job.problem or {}).get("permanent", False)
