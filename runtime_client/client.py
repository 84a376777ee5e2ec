"""Get a plan for a job: from the service, from the local cache when the service is away, or from a file.

Nothing here imports torch, so a launcher can use it. One rank (or the launcher) should ask and hand the plan on.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import httpx2

from planner.schema import InvalidDocument, Measurement, Plan, PlanBody, PlanRequest
from runtime_client.breaker import CircuitBreaker
from runtime_client.cache import CachedPlan, CacheKey, LineageKey, PlanCache, PlanKey, default_cache_dir
from runtime_client.errors import (
    ClientError,
    NoPlanAvailable,
    PlanIdentityMismatch,
    ServiceUnavailable,
    UntrustedPlan,
)
from runtime_client.service import Deadline, PlanService
from runtime_client.signatures import TrustedKeys

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """A plan, and how current it is."""

    plan: Plan
    source: Literal["service", "cache"]
    stale: bool = False
    """The service did not answer; this is the last plan that it gave to the same question."""
    age_s: float = 0.0
    """Seconds since the plan was received."""
    reason: str = ""
    """Why the plan is stale."""

    @property
    def is_provisional(self) -> bool:
        """The best plan that the search had found by the deadline: checked, but not proven. The service goes on."""
        certificate = self.plan.body.certificate
        return certificate is not None and certificate.status == "provisional"


class PlanClient:
    """Asks a plan service, and never holds a job up for longer than the deadline.

    After three failures in a row the service is not asked for a minute: calls answer from the cache at once.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        deadline_s: float = 30.0,
        cache_dir: Path | str | None = None,
        trusted_keys: Sequence[str] = (),
    ) -> None:
        """Remember where to ask.

        Args:
            url: Base address of the service, e.g. `https://plans.example.com`.
            api_key: Sent as a bearer token.
            deadline_s: Seconds that `plan` may take, all retries and polls together.
            cache_dir: Where the last good plans are kept; by default below the user's cache directory.
            trusted_keys: Public keys of the service, `ed25519:BASE64`. Where any is given, a plan that none of them
                signed is of no use, from the service or from the cache.

        Raises:
            ClientError: the address is not one of HTTP, a key is none, or the deadline is not positive.
        """
        if deadline_s <= 0:
            raise ClientError(f"deadline_s is {deadline_s}; it must be positive")
        self.deadline_s = deadline_s
        self._service = PlanService(checked_url(url), api_key=api_key)
        self._breaker = CircuitBreaker()
        self._trusted = TrustedKeys(trusted_keys)
        self._cache = PlanCache(Path(cache_dir) if cache_dir is not None else default_cache_dir())

    def plan(self, request: PlanRequest) -> PlannedFor:
        """The plan of a request; the last good one, marked stale, when the service cannot answer in time.

        A plan may be infeasible: that is an answer, with its reason. At the deadline it may be provisional: the
        best of a search that goes on. Such plans are not cached.

        Raises:
            PlanServiceError: the service refused the request (the cache is not asked then).
            NoPlanAvailable: no answer in time, and nothing cached.
        """
        return self._ask(PlanKey.of(request), lambda deadline: self._service.fetch(request.to_json(), deadline))

    def active(self, lineage: str, *, model: str | None = None, world_size: int | None = None) -> PlannedFor:
        """The active plan of a lineage; the last one that was active, marked stale, when the service is away.

        Args:
            lineage: Its name, or its identity.
            model: Fingerprint of the module in this process (`runtime_client.fingerprint`); needed where several
                lineages share the name.
            world_size: Ranks of this job. A plan for another number is of no use.

        Raises:
            PlanServiceError: the service has no such lineage, no active plan in it, or refused to say.
            NoPlanAvailable: no answer of use in time, and nothing cached.
        """
        key = LineageKey(lineage=lineage, model_fingerprint=model, world_size=world_size)
        return self._ask(key, lambda deadline: self._service.fetch_active(lineage, model, deadline))

    def report(self, measurement: Measurement) -> bool:
        """Tell the service what steps took; returns whether it took the report. Never raises, so that a training
        loop can call it: what went wrong is logged. A report may be sent again; the service keeps one.

        `runtime_client.measure.StepTimer` makes measurements and calls this in a thread of its own; called by
        itself it may take `deadline_s`.
        """
        try:
            self._fetch(lambda deadline: self._service.report(measurement.to_json(), deadline))
        except Exception as error:
            steps = f"{measurement.first_step} to {measurement.last_step}"
            _log.warning("%s did not take the report of steps %s: %s", self._service.url, steps, error)
            return False
        return True

    def _ask(self, key: CacheKey, fetch: Callable[[Deadline], Plan]) -> PlannedFor:
        try:
            plan = self._fetch(fetch)
            self._trusted.check(plan)
            if (why := key.mismatch(plan)) is not None:
                raise ServiceUnavailable(f"the plan of {self._service.url} is of no use: {why}")
        except (ServiceUnavailable, UntrustedPlan) as error:
            return self._last_good(key, error)
        answer = PlannedFor(plan=plan, source="service")
        if plan.body.outcome == "feasible" and not answer.is_provisional:
            self._cache.store(key, plan)
        return answer

    def _fetch(self, fetch: Callable[[Deadline], T]) -> T:
        """Fetch, unless the service has failed several times in a row."""
        self._breaker.enter()
        try:
            answer = self._fetch_in_thread(fetch)
        except ServiceUnavailable as error:
            self._breaker.failed(str(error))
            raise
        except ClientError:
            self._breaker.answered()
            raise
        self._breaker.answered()
        return answer

    def _fetch_in_thread(self, fetch: Callable[[Deadline], T]) -> T:
        """Resolving a name, for one, knows no timeout."""
        answers: list[T | BaseException] = []
        deadline = Deadline.after(self.deadline_s)

        def work() -> None:
            try:
                answers.append(fetch(deadline))
            except BaseException as error:
                answers.append(error)

        thread = threading.Thread(target=work, name="shardwright-plan", daemon=True)
        thread.start()
        thread.join(deadline.remaining_s)
        if not answers:
            raise ServiceUnavailable("no answer")
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def _last_good(self, key: CacheKey, error: ServiceUnavailable | UntrustedPlan) -> PlannedFor:
        reason = f"{self._service.url} gave no plan within {self.deadline_s:g} s: {error}"
        cached = self._load(key)
        if cached is None:
            raise NoPlanAvailable(
                f"{reason}; and {self._cache.directory} holds no plan for {key.words}. "
                "Start the service, allow more time, or load a plan from a file."
            ) from error
        _log.warning("%s; using the plan of %.0f s ago", reason, cached.age_s)
        return PlannedFor(plan=cached.plan, source="cache", stale=True, age_s=cached.age_s, reason=reason)

    def _load(self, key: CacheKey) -> CachedPlan | None:
        cached = self._cache.load(key)
        if cached is not None:
            try:
                self._trusted.check(cached.plan)
            except UntrustedPlan as error:
                _log.warning("the cached plan is ignored: %s", error)
                return None
        return cached


def load_plan(path: Path | str, *, trusted_keys: Sequence[str] = ()) -> Plan:
    """A plan from a file: a plan with its envelope, or a bare body (which then gets an envelope).

    With `trusted_keys` (see `PlanClient`) the plan has to be signed.

    Raises:
        UntrustedPlan: it is not signed by one of the keys.
        ClientError: the file cannot be read.
        InvalidDocument: it holds neither.
        PlanIdentityMismatch: the body was changed after the plan was made.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror or error}") from None
    try:
        plan = Plan.from_json(text, source=str(path))
    except InvalidDocument as error:
        if not any(problem_path == "body" for problem_path, _ in error.problems):
            raise
        plan = Plan.of(PlanBody.from_json(text, source=str(path)))
    if not plan.verify():
        raise PlanIdentityMismatch(
            f"{path}: envelope.plan_id is {plan.envelope.plan_id}, but the body is {plan.body.content_hash()}. "
            "Plan again; to apply a plan edited by hand, keep its body alone in the file."
        )
    TrustedKeys(trusted_keys).check(plan)
    return plan


def checked_url(url: str) -> str:
    """The address of a service.

    Raises:
        ClientError: it is none of HTTP.
    """
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise ClientError(f"{url!r} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ClientError(f"{url!r} is not an address of HTTP; give one such as https://plans.example.com")
    return url
