"""A request becomes a plan: refuse, search, predict, check, explain."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from time import monotonic

from planner import __version__
from planner.catalog.torch_versions import required_torch
from planner.check import check
from planner.found import Found, OnProgress, Progress
from planner.infeasible import explain_infeasible
from planner.reasons import reasons_of
from planner.refuse import refuse_unsupported
from planner.schema import (
    ActivationPolicy,
    Certificate,
    ClientFeature,
    Decisions,
    GradientSync,
    Infeasibility,
    InputHashes,
    ModelDescription,
    Objective,
    Plan,
    PlanBody,
    PlanRequest,
    Predictions,
    Reasons,
    Requirements,
    StateTier,
    Timings,
    UnitPlan,
)
from planner.search import search
from planner.simulate.predict import predict
from planner.space.candidate import possible_micro_batches

__all__ = ["PlannerDefect", "Progress", "make_plan"]

FIRST_PROVISIONAL_S = 0.5
"""A search that ends before gives no provisional plan; also the least time between two."""
PROVISIONAL_SHARE = 20
"""A provisional plan comes after so many times the time that the last one took to make."""


class PlannerDefect(RuntimeError):
    """Solver, simulator and checker disagree: a defect of the planner, never of the input."""


def make_plan(
    request: PlanRequest,
    *,
    on_progress: OnProgress | None = None,
    on_provisional: Callable[[Plan], None] | None = None,
    warm_start: Decisions | None = None,
    may_start_cold: bool = False,
) -> Plan:
    """Plan a request; an infeasible one gives a plan whose body says why.

    Args:
        request: what to plan.
        on_progress: told how far the search is.
        on_provisional: given the best plan so far every now and then, checked as the last one is, but neither
            proven nor tidy, and without alternatives. Making them takes a twentieth of the time at most.
        warm_start: decisions of the plan that `request.warm_start` names.
        may_start_cold: that plan is known to have none, since it did not fit.

    Raises:
        ShardwrightError: the request is unsupported or contradicts itself.
        PlannerDefect: the independent checker rejects the result.
    """
    started = monotonic()
    refuse_unsupported(request, has_warm_start=may_start_cold or warm_start is not None)
    batch = _batch_problem(request)
    if batch is not None:
        return _wrap(_infeasible_body(request, batch), started, 0.0)
    on_better = _Provisional.of(request, started, on_provisional)
    found = search(request, on_progress, on_better=on_better, warm_start=warm_start)
    searched = monotonic() - started
    if found.best is None or found.assignment is None:
        return _wrap(_infeasible_body(request, explain_infeasible(request)), started, searched)
    return _wrap(_feasible_body(request, found), started, searched)


@dataclass(slots=True, kw_only=True)
class _Provisional:
    """Turns the best plan so far into a whole one, where it is better than the last and some time has gone by."""

    request: PlanRequest
    started: float
    give: Callable[[Plan], None]
    next_at: float
    given: int | None = None

    @classmethod
    def of(cls, request: PlanRequest, started: float, give: Callable[[Plan], None] | None) -> "_Provisional | None":
        """Nothing to do where nobody wants provisional plans."""
        if give is None:
            return None
        return cls(request=request, started=started, give=give, next_at=started + FIRST_PROVISIONAL_S)

    def __call__(self, incumbent: int, found: Callable[[], Found]) -> None:
        """As `OnBetter`."""
        now = monotonic()
        if incumbent == self.given or now < self.next_at:
            return
        self.given = incumbent
        body = _feasible_body(self.request, found(), is_provisional=True)
        self.give(_wrap(body, self.started, now - self.started))
        after = monotonic()
        self.next_at = after + max(FIRST_PROVISIONAL_S, PROVISIONAL_SHARE * (after - now))


def _wrap(body: PlanBody, started: float, search_s: float) -> Plan:
    timings = Timings(total_s=round(monotonic() - started, 3), search_s=round(search_s, 3))
    return Plan.of(body, timings=timings, created_at=datetime.now(UTC).isoformat(timespec="seconds"))


def _feasible_body(request: PlanRequest, found: Found, *, is_provisional: bool = False) -> PlanBody:
    assert found.best is not None
    assert found.assignment is not None
    decisions = found.best.unpack(request, found.assignment)
    predictions = predict(request, decisions)
    certificate = _certificate(request, predictions, found)
    if is_provisional:
        certificate = certificate.model_copy(update={"status": "provisional"})
    body = PlanBody(
        name=request.model.name,
        outcome="feasible",
        model_fingerprint=request.model.fingerprint,
        world_size=decisions.mesh.num_ranks,
        decisions=decisions,
        predictions=predictions,
        certificate=certificate,
        reasons=Reasons() if is_provisional else reasons_of(request, found, decisions, predictions),
        inputs=input_hashes(request),
        requires=_requirements(decisions, request.model),
        planner_version=__version__,
    )
    _require_agreement(request, body, found)
    return body.model_copy(update={"certificate": certificate.model_copy(update={"checker": "passed"})})


def _certificate(request: PlanRequest, predictions: Predictions, found: Found) -> Certificate:
    is_time = request.objective is Objective.STEP_TIME
    value = predictions.step_time_ns if is_time else predictions.peak.reserved_bytes
    bound = min(found.lower_bound, value)
    return Certificate(
        objective="step_time_ns" if is_time else "peak_memory_bytes",
        value=value,
        lower_bound=bound,
        gap=round((value - bound) / value, 9) if value else 0.0,
        status="optimal" if bound == value else "provisional" if found.interrupted else "bounded",
        num_candidates=found.num_regions,
        num_pruned=found.num_pruned,
        deterministic_time=found.deterministic_time,
        wall_clock_struck=found.wall_clock_struck,
        solver=f"or-tools {version('ortools')} CP-SAT",
    )


def _require_agreement(request: PlanRequest, body: PlanBody, found: Found) -> None:
    assert found.best is not None
    assert found.assignment is not None
    assert body.predictions is not None
    evaluation = found.best.heuristic.evaluate(found.assignment)
    objective = found.best.step_ns(evaluation)
    if objective != body.predictions.step_time_ns or evaluation.peak != body.predictions.peak.reserved_bytes:
        raise PlannerDefect(
            f"the solver's objective {objective} ns and peak {evaluation.peak} bytes differ from the simulator's "
            f"{body.predictions.step_time_ns} ns and {body.predictions.peak.reserved_bytes} bytes"
        )
    report = check(request, body)
    if not report.passed:
        raise PlannerDefect("the checker rejects the plan: " + "; ".join(report.problems[:5]))


def input_hashes(request: PlanRequest) -> InputHashes:
    """Identity of each document in a request."""
    return InputHashes(
        model=request.model.content_hash(),
        cluster=request.cluster.content_hash(),
        workload=request.workload.content_hash(),
        profile=None if request.profile is None else request.profile.content_hash(),
        request=request.content_hash(),
    )


def _requirements(decisions: Decisions, model: ModelDescription) -> Requirements:
    policies = {entry.policy for entry in decisions.activations}
    runtime = decisions.runtime
    features = {
        ClientFeature.HYBRID_MESH: any(mesh.replicate > 1 for mesh in decisions.meshes),
        ClientFeature.UNIT_MESH: len(decisions.meshes) > 1,
        ClientFeature.PREFETCH: any(u.forward_prefetch or u.backward_prefetch for u in decisions.units),
        ClientFeature.CHECKPOINT_FULL: ActivationPolicy.FULL in policies,
        ClientFeature.CHECKPOINT_SELECTIVE: ActivationPolicy.SELECTIVE in policies,
        ClientFeature.ACTIVATION_OFFLOAD: ActivationPolicy.OFFLOAD in policies,
        ClientFeature.GROUPED_UNITS: any(len(unit.modules) > 1 for unit in decisions.units),
        ClientFeature.REDUCE_SCATTER_BUFFERS: runtime.reduce_scatter_max_input_buffers > 1,
        ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP: runtime.separate_reduce_scatter_group,
        ClientFeature.RESHARD_INTEGER: any(_reshards_in_part(unit) for unit in decisions.units),
        ClientFeature.RAGGED_LAYOUT: bool(decisions.layouts),
        ClientFeature.ALIAS_GATHERS: any(unit.alias_gathers for unit in decisions.units),
        ClientFeature.MUON_OWNERS: bool(decisions.owners),
        ClientFeature.OFFLOAD: any(unit.parameter_tier is not StateTier.DEVICE for unit in decisions.units),
        ClientFeature.OPTIMIZER_OFFLOAD: any(
            unit.parameter_tier is StateTier.DEVICE and unit.optimizer_tier is StateTier.HOST
            for unit in decisions.units
        ),
        ClientFeature.OPTIMIZER_NVME: any(unit.optimizer_tier is StateTier.NVME for unit in decisions.units),
        ClientFeature.ACCUMULATION: runtime.gradient_sync is not GradientSync.EVERY_MICRO_BATCH
        or not all(unit.reshard_after_backward for unit in decisions.units),
    }
    return Requirements(
        client_features=tuple(feature for feature, needed in features.items() if needed),
        torch=required_torch(decisions, model),
    )


def _reshards_in_part(unit: UnitPlan) -> bool:
    return unit.reshard_after_forward is not None and not isinstance(unit.reshard_after_forward, bool)


def _infeasible_body(request: PlanRequest, infeasibility: Infeasibility) -> PlanBody:
    return PlanBody(
        name=request.model.name,
        outcome="infeasible",
        model_fingerprint=request.model.fingerprint,
        world_size=request.cluster.num_devices,
        infeasibility=infeasibility,
        inputs=input_hashes(request),
        planner_version=__version__,
    )


def _batch_problem(request: PlanRequest) -> Infeasibility | None:
    workload, world = request.workload, request.cluster.num_devices
    per_pass = workload.micro_batch * world
    if possible_micro_batches(request):
        return None
    lower, higher = workload.global_batch // per_pass * per_pass, -(-workload.global_batch // per_pass) * per_pass
    choices = " or ".join(str(size) for size in (lower, higher) if size)
    return Infeasibility(
        reason=(
            f"a global batch of {workload.global_batch} sequences cannot be split into micro-batches of "
            f"{workload.micro_batch} on {world} ranks"
        ),
        binding="batch",
        advice=(
            f"use a global batch of {choices}",
            f"or a micro-batch that divides {workload.global_batch / world:g} sequences per rank",
        ),
    )
