"""What a plan's step looks like from inside, and predictions for configurations that nobody searched."""

import json
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar, Self

from pydantic import model_validator
from sqlalchemy.orm import Session

from api.service.differences import InputChange, Origin, input_changes
from api.service.errors import NoDecisions, NotFound, UnknownReference
from api.service.parsing import parse_document, parse_json
from api.service.plans import PlanService
from planner.explain import Difference, diff
from planner.schema import Decisions, InvalidDocument, Plan, PlanRequest, Predictions
from planner.schema.base import Document, Sha256
from planner.simulate import predict
from planner.simulate.memory_series import MemorySample, memory_samples
from planner.simulate.streams import Work, stalled_ns, tracks_of
from planner.simulate.timeline import Timeline, timeline_of
from planner.what_if import Change, carried_over, changed_request
from profiles_db import plans, provisional, requests
from profiles_db.engine import Database

KEPT_STEPS = 4
"""Replayed steps that are kept for the next look at them; each may take tens of MB."""


class NewSimulation(Document):
    """What to predict: the decisions of a stored plan, or written ones for a request; either with a change."""

    kind: ClassVar[str] = "simulation"

    plan: Sha256 | None = None
    """Identity of a stored plan that fits."""
    request: PlanRequest | None = None
    """By reference or inline, as `POST /v1/plans` takes it; search limits and fixed choices mean nothing here."""
    decisions: Decisions | None = None
    change: Change = Change()

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        by_hand = self.request is not None and self.decisions is not None
        if (self.plan is None) == (not by_hand) or (self.plan is not None and (self.request or self.decisions)):
            raise ValueError("give either `plan`, or `request` and `decisions`")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A configuration and what it costs."""

    request: PlanRequest
    decisions: Decisions
    predictions: Predictions
    notes: tuple[str, ...]
    """How the decisions of the plan were changed to be carried over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of a plan, replayed."""

    plan: Plan
    samples: tuple[MemorySample, ...]
    tracks: dict[str, tuple[Work, ...]]
    stalled_ns: dict[str, int]
    """Of the whole step, by field of `StepBreakdown`."""
    micro_batches: tuple[tuple[int, int, int], ...]
    """Start (ns), duration (ns) of each that differs, and how many of the step are like it."""
    shown_ns: int
    """End of the optimizer step, like micro-batches counted once."""
    optimizer_start_ns: int
    step_time_ns: int

    @property
    def agrees(self) -> bool:
        """Whether this planner predicts the step time that the plan states; one of another version may not."""
        predictions = self.plan.body.predictions
        return predictions is not None and predictions.step_time_ns == self.step_time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """Two plans side by side."""

    before: Plan
    after: Plan
    inputs: list[InputChange]
    differences: tuple[Difference, ...]


class SimulationService:
    """Predictions without a search. `max_calls` bounds a model's forward, and with it the time of an answer."""

    def __init__(self, database: Database, parser: PlanService, *, max_calls: int) -> None:
        self._database = database
        self._parser = parser
        self._max_calls = max_calls
        self._lock = Lock()
        self._steps: OrderedDict[tuple[str, str], Future[Step]] = OrderedDict()

    def plan(self, tenant: str, plan_id: str) -> Plan:
        """A plan, proven or provisional.

        Raises:
            NotFound: the tenant has no such plan.
        """
        with self._database.read() as session:
            return _plan(session, tenant, plan_id)

    def request(self, tenant: str, plan: Plan) -> PlanRequest:
        """What a stored plan answers."""
        with self._database.read() as session:
            request = requests.get(session, tenant, plan.body.inputs.request)
        assert request is not None, "foreign keys keep the requests of plans"
        return request

    def simulate(self, tenant: str, body: bytes) -> Simulated:
        """Predict what a `NewSimulation` describes.

        Raises:
            InvalidJson, InvalidDocument, UnknownReference: the body is not one.
            NoDecisions: the plan is infeasible.
            DecisionsDoNotFit, InconsistentRequest, UnsupportedField: there is nothing to predict, and why.
        """
        value = parse_json(body)
        if isinstance(value, dict) and isinstance(value.get("request"), dict):
            self._parser.resolve(tenant, value["request"])
        new = parse_document(NewSimulation, value)
        if new.plan is not None:
            return self.what_if(tenant, new.plan, new.change)
        assert new.request is not None
        assert new.decisions is not None
        return self._predicted(new.request, new.decisions, new.change)

    def what_if(self, tenant: str, plan_id: str, change: Change) -> Simulated:
        """Predict the decisions of a plan under a change; errors as `simulate`."""
        plan = self._asked(tenant, plan_id)
        if plan.body.decisions is None:
            raise NoDecisions(plan_id)
        return self._predicted(self.request(tenant, plan), plan.body.decisions, change)

    def changed(self, tenant: str, plan_id: str, change: Change) -> PlanRequest:
        """The request of a plan, which may be infeasible, under a change: what a solve answers.

        Raises:
            UnknownReference: the tenant has no such plan.
            InconsistentRequest: the cluster has no such number of ranks.
        """
        return changed_request(self.request(tenant, self._asked(tenant, plan_id)), change)

    def _asked(self, tenant: str, plan_id: str) -> Plan:
        try:
            return self.plan(tenant, plan_id)
        except NotFound:
            raise UnknownReference("plan", plan_id, remedy="ask for the plan first: POST /v1/plans") from None

    def _predicted(self, request: PlanRequest, decisions: Decisions, change: Change) -> Simulated:
        request = changed_request(request, change)
        self._check(request)
        decisions, notes = carried_over(decisions, request, change)
        predictions = predict(request, decisions)
        return Simulated(request=request, decisions=decisions, predictions=predictions, notes=notes)

    def _check(self, request: PlanRequest) -> None:
        number = len(request.model.calls)
        if number > self._max_calls:
            message = f"{number} calls; this server simulates at most {self._max_calls} at once"
            raise InvalidDocument(f"model.calls: {message}", problems=(("request.model.calls", message),))

    def step(self, tenant: str, plan_id: str) -> Step:
        """The step of a plan, replayed; callers that come meanwhile wait for the same replay.

        Raises:
            NotFound: the tenant has no such plan.
            NoDecisions: the plan is infeasible.
            InvalidDocument: its model is larger than this server simulates.
        """
        plan = self.plan(tenant, plan_id)
        with self._lock:
            known = self._steps.get((tenant, plan_id))
            step: Future[Step] = known or Future()
            self._steps[tenant, plan_id] = step
            self._steps.move_to_end((tenant, plan_id))
            while len(self._steps) > KEPT_STEPS:
                self._steps.popitem(last=False)
        if known is None:
            try:
                step.set_result(self._replayed(tenant, plan))
            except Exception as error:
                with self._lock:
                    self._steps.pop((tenant, plan_id), None)
                step.set_exception(error)
        return step.result()

    def _replayed(self, tenant: str, plan: Plan) -> Step:
        _, timeline = self._timeline(tenant, plan)
        return Step(
            plan=plan,
            samples=memory_samples(timeline),
            tracks=tracks_of(timeline),
            stalled_ns=stalled_ns(timeline),
            micro_batches=tuple((start, run.micro_batch_ns, num) for start, run, num in timeline.placed()),
            shown_ns=timeline.shown_ns,
            optimizer_start_ns=timeline.optimizer_start_ns,
            step_time_ns=timeline.step_time_ns,
        )

    def trace(self, tenant: str, plan_id: str) -> bytes:
        """The step of a plan as Chrome trace JSON; errors as `step`."""
        request, timeline = self._timeline(tenant, self.plan(tenant, plan_id))
        return json.dumps(timeline.chrome_trace(f"{request.model.name} on {request.cluster.name}")).encode()

    def _timeline(self, tenant: str, plan: Plan) -> tuple[PlanRequest, Timeline]:
        if plan.body.decisions is None:
            raise NoDecisions(plan.envelope.plan_id)
        request = self.request(tenant, plan)
        self._check(request)
        return request, timeline_of(request, plan.body.decisions)

    def difference(self, tenant: str, before: str, after: str) -> PlanDifference:
        """What differs between two plans, in words and numbers.

        Raises:
            NotFound: the tenant has not both.
        """
        with self._database.read() as session:
            old, new = (_plan(session, tenant, plan_id) for plan_id in (before, after))
            inputs = input_changes(session, tenant, Origin.of_body(old.body), Origin.of_body(new.body))
        return PlanDifference(before=old, after=new, inputs=inputs, differences=diff(old.body, new.body))


def _plan(session: Session, tenant: str, plan_id: str) -> Plan:
    body = plans.get_bytes(session, tenant, plan_id) or provisional.get_bytes(session, tenant, plan_id)
    if body is None:
        raise NotFound("plan", plan_id)
    return Plan.from_json(body, source=f"stored plan {plan_id}")
