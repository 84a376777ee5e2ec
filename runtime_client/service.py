"""The plan service over HTTP: one request in, one verified plan out, within a deadline."""

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from planner.schema import InvalidDocument, Plan
from runtime_client.errors import PlanServiceError, ServiceUnavailable

T = TypeVar("T")

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
POLL_PAUSE_S = 0.5
SHORTEST_POLL_PAUSE_S = 0.1
SHORTEST_TIMEOUT_S = 0.01
LONGEST_WAIT_S = 30.0
"""The service holds a request for this long at most."""
_RETRIED_STATUS = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - time.monotonic())


class PlanService:
    """Speaks to `/v1/plans`, `/v1/jobs`, `/v1/lineages` and `/v1/measurements` below a base address."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url
        self._headers = {"Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def fetch(self, document: str, deadline: Deadline) -> Plan:
        """Ask for the plan of a request document and wait for it; at the deadline the best plan so far will do.

        Equal requests share one search, so asking again after a lost answer is safe.

        Raises:
            PlanServiceError: the service refused the request.
            ServiceUnavailable: no usable answer before the deadline.
        """
        with httpx2.Client(base_url=self.url, headers=self._headers) as http:
            exchange = _Exchange(http, deadline)
            answer = exchange.ask_for_plan(document)
            return answer if isinstance(answer, Plan) else exchange.follow(answer)

    def fetch_active(self, lineage: str, model: str | None, deadline: Deadline) -> Plan:
        """Get the active plan of a lineage, of one module when it is given.

        Raises:
            PlanServiceError: the service refused, or knows no such lineage or no active plan in it.
            ServiceUnavailable: no usable answer before the deadline.
        """
        with httpx2.Client(base_url=self.url, headers=self._headers) as http:
            return _Exchange(http, deadline).active(lineage, model)

    def report(self, document: str, deadline: Deadline) -> None:
        """Send a measurement; sending it again after a lost answer is safe.

        Raises:
            PlanServiceError: the service refused it.
            ServiceUnavailable: no answer before the deadline.
        """
        with httpx2.Client(base_url=self.url, headers=self._headers) as http:
            _Exchange(http, deadline).report(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    job_id: str
    state: str
    plan_id: str | None
    provisional_plan_id: str | None
    problem: dict[str, Any] | None
    pause_s: float


@dataclass(frozen=True, slots=True)
class _Exchange:
    http: httpx2.Client
    deadline: Deadline

    def ask_for_plan(self, document: str) -> Plan | _Job:
        def request() -> httpx2.Response:
            # A second is kept back to hear of a job that is not done.
            wait_s = max(0.0, min(LONGEST_WAIT_S, self.deadline.remaining_s - 1.0))
            return self._post(f"/v1/plans?wait={wait_s:.1f}", document)

        return self._retry(
            request, lambda response: _job(response) if response.status_code == 202 else _plan(response)
        )

    def active(self, lineage: str, model: str | None) -> Plan:
        path = f"/v1/lineages/{quote(lineage, safe=':')}/active"
        query = "" if model is None else f"?model={quote(model, safe=':')}"
        return self._retry(lambda: self._get(path + query), _plan)

    def report(self, document: str) -> None:
        def request() -> httpx2.Response:
            return self._post("/v1/measurements", document)

        self._retry(request, lambda _response: None)

    def follow(self, job: _Job) -> Plan:
        path = f"/v1/jobs/{quote(job.job_id, safe=':')}"
        while (plan_id := job.plan_id) is None:
            if job.state not in ("queued", "running"):
                raise _job_failure(job)
            if job.pause_s >= self.deadline.remaining_s:
                if job.provisional_plan_id is not None:
                    return self._plan(job.provisional_plan_id)
                raise ServiceUnavailable(f"job {job.job_id} is still {job.state}")
            time.sleep(job.pause_s)
            job = self._retry(lambda: self._get(path), _job)
        return self._plan(plan_id)

    def _plan(self, plan_id: str) -> Plan:
        return self._retry(lambda: self._get(f"/v1/plans/{quote(plan_id, safe=':')}"), lambda r: _plan(r, plan_id))

    def _timeout_s(self) -> float:
        return max(SHORTEST_TIMEOUT_S, self.deadline.remaining_s)

    def _post(self, path: str, document: str) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        return self.http.post(path, content=document.encode(), headers=headers, timeout=self._timeout_s())

    def _get(self, path: str) -> httpx2.Response:
        return self.http.get(path, timeout=self._timeout_s())

    def _retry(self, request: Callable[[], httpx2.Response], read: Callable[[httpx2.Response], T]) -> T:
        for attempt in itertools.count():
            asked_s = None
            try:
                response = request()
                if response.status_code < 300:
                    return read(response)
                problem = problem_of(response)
                if response.status_code < 500 and response.status_code not in _RETRIED_STATUS:
                    raise problem
                why, asked_s = str(problem), _retry_after_s(response)
            except httpx2.RequestError as error:
                why = f"{type(error).__name__} {error}".strip()
            except InvalidDocument as error:
                why = str(error)
            next_s = _pause_s(attempt, asked_s)
            if next_s >= self.deadline.remaining_s:
                raise ServiceUnavailable(why)
            time.sleep(next_s)
        raise AssertionError("counting never ends")


def _plan(response: httpx2.Response, expected_id: str | None = None) -> Plan:
    source = f"the answer of {response.request.url.path}"
    plan = Plan.from_json(response.content, source=source)
    found = plan.body.content_hash()
    for wanted in (plan.envelope.plan_id, expected_id or found):
        if found != wanted:
            raise InvalidDocument(f"{source} should be plan {wanted}, but its body is {found}")
    return plan


def _job(response: httpx2.Response) -> _Job:
    value = _json_object(response)
    job_id, problem = value.get("job_id"), value.get("problem")
    if not isinstance(job_id, str) or not job_id:
        raise InvalidDocument(f"the answer of {response.request.url.path} is no job: it has no job_id")
    asked_s = _retry_after_s(response)
    return _Job(
        job_id=job_id,
        state=str(value.get("state")),
        plan_id=_text(value.get("plan_id")),
        provisional_plan_id=_text(value.get("provisional_plan_id")),
        problem=problem if isinstance(problem, dict) else None,
        pause_s=POLL_PAUSE_S if asked_s is None else max(SHORTEST_POLL_PAUSE_S, asked_s),
    )


def _job_failure(job: _Job) -> PlanServiceError | ServiceUnavailable:
    problem = job.problem or {}
    status = problem.get("status")
    error = PlanServiceError(
        status=status if isinstance(status, int) else 500,
        title=str(problem.get("title") or f"job {job.job_id} {job.state}"),
        detail=str(problem.get("detail") or ""),
        problem_code=_text(problem.get("code")),
    )
    return error if error.status < 500 else ServiceUnavailable(str(error))


def problem_of(response: httpx2.Response) -> PlanServiceError:
    """The problem document of an answer that is an error."""
    fallback = response.reason_phrase or "error"
    try:
        value = _json_object(response)
    except InvalidDocument:
        value = {}
    if response.is_redirect:
        value = {"detail": f"it moved to {response.headers.get('Location')}; use that address"}
    return PlanServiceError(
        status=response.status_code,
        title=str(value.get("title") or fallback),
        detail=str(value.get("detail") or ""),
        problem_code=_text(value.get("code")),
    )


def _json_object(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = json.loads(response.content)
    except ValueError as error:
        raise InvalidDocument(f"the answer of {response.request.url.path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidDocument(f"the answer of {response.request.url.path} is not a JSON object")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _pause_s(attempt: int, asked_s: float | None) -> float:
    """Exponential with jitter, so that many jobs do not come back together; at least what was asked."""
    own_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
    return own_s if asked_s is None else max(own_s, asked_s + random.uniform(0.0, FIRST_PAUSE_S))


def _retry_after_s(response: httpx2.Response) -> float | None:
    """Seconds of a `Retry-After` header, which may be a number or a date."""
    header = response.headers.get("Retry-After", "")
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
