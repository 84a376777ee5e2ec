"""Verdict on a plan: its structure, its identity, its predictions and its certificate."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.check.costs import StepCosts
from planner.check.step import Recomputed, Replay
from planner.check.structure import structural_problems
from planner.costs.model import CostModel
from planner.schema.decisions import ActivationPolicy, Decisions, GradientSync
from planner.schema.errors import ShardwrightError
from planner.schema.model import StateTier
from planner.schema.plan import Certificate, PlanBody, Predictions
from planner.schema.request import ClientFeature, Objective, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What the checker found. Numbers are 0 when the decisions were too broken to recompute them.

    Counts and `micro_batch_ns` are those of every micro-batch where all are alike, else those of the last one
    (`planner.check.step.Recomputed`).
    """

    passed: bool
    problems: tuple[str, ...] = ()
    step_time_ns: int = 0
    micro_batch_ns: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    pools_bytes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0
    num_all_gathers: int = 0
    num_reduce_scatters: int = 0
    num_all_reduces: int = 0


def check(request: PlanRequest, body: PlanBody, costs: StepCosts | None = None) -> CheckReport:
    """Recompute a plan and compare; whatever is wrong with the document is a problem, not an exception.

    Args:
        request: what the plan answers.
        body: the plan.
        costs: durations and sizes; the request's own cost model unless given.

    Raises:
        TypeError: `request` or `body` is not a document of its kind.
    """
    _require(request, PlanRequest)
    _require(body, PlanBody)
    problems = [*_inputs(request, body), *_outcome(body)]
    if body.outcome == "infeasible" or body.decisions is None:
        return CheckReport(passed=not problems, problems=tuple(problems))
    unsound = structural_problems(request, body.decisions)
    problems += [*unsound, *_features(request, body.decisions)]
    ranks = body.decisions.mesh.num_ranks
    if body.world_size != ranks:
        problems.append(f"world size {body.world_size} differs from the mesh's {ranks} ranks")
    found = None if unsound else _recomputed(request, body.decisions, costs, problems)
    if body.predictions is not None:
        problems += _breakdown(body.predictions)
        problems += _compared(body.predictions, found) if found else ()
    if body.certificate is not None and body.predictions is not None:
        problems += _certificate(body.certificate, body.predictions, request.objective)
    if found is None:
        return CheckReport(passed=False, problems=tuple(problems))
    problems += _limits(request, found)
    return CheckReport(
        passed=not problems,
        problems=tuple(problems),
        step_time_ns=found.step_time_ns,
        micro_batch_ns=found.micro_batch_ns,
        reserved_bytes=found.reserved_bytes,
        allocated_bytes=found.allocated_bytes,
        pools_bytes=found.pools_bytes,
        host_bytes=found.host_bytes,
        num_all_gathers=found.num_all_gathers,
        num_reduce_scatters=found.num_reduce_scatters,
        num_all_reduces=found.num_all_reduces,
    )


def _require(document: Any, kind: type) -> None:  # noqa: ANN401
    if not isinstance(document, kind):
        raise TypeError(f"expected a {kind.__name__}, got {type(document).__name__}")


def _recomputed(
    request: PlanRequest, decisions: Decisions, costs: StepCosts | None, problems: list[str]
) -> Recomputed | None:
    """The numbers of sound decisions, or None with the reason added to the problems."""
    try:
        planned = request.model_copy(update={"workload": decisions.decided(request.workload)})
        return Replay(planned, decisions, costs or CostModel.of_plan(planned, decisions)).run()
    except ShardwrightError as error:
        problems.append(f"costs cannot be worked out: {error}")
        return None


def _features(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Knobs that the caller's client cannot apply."""
    units, runtime = decisions.units, decisions.runtime
    policies = {item.policy for item in decisions.activations}
    used = {
        ClientFeature.HYBRID_MESH: any(decisions.mesh_of(unit).replicate > 1 for unit in units),
        ClientFeature.UNIT_MESH: any(unit.mesh is not None for unit in units),
        ClientFeature.PREFETCH: any(unit.forward_prefetch or unit.backward_prefetch for unit in units),
        ClientFeature.RESHARD_INTEGER: any(type(unit.reshard_after_forward) is int for unit in units),
        ClientFeature.CHECKPOINT_FULL: ActivationPolicy.FULL in policies,
        ClientFeature.CHECKPOINT_SELECTIVE: ActivationPolicy.SELECTIVE in policies,
        ClientFeature.GROUPED_UNITS: any(len(unit.modules) > 1 for unit in units),
        ClientFeature.ACCUMULATION: runtime.gradient_sync is not GradientSync.EVERY_MICRO_BATCH
        or not all(unit.reshard_after_backward for unit in units),
        ClientFeature.ACTIVATION_OFFLOAD: ActivationPolicy.OFFLOAD in policies,
        ClientFeature.RAGGED_LAYOUT: bool(decisions.layouts),
        ClientFeature.ALIAS_GATHERS: any(unit.alias_gathers for unit in units),
        ClientFeature.MUON_OWNERS: bool(decisions.owners),
        ClientFeature.OFFLOAD: any(unit.parameter_tier is not StateTier.DEVICE for unit in units),
        ClientFeature.OPTIMIZER_OFFLOAD: any(
            (unit.parameter_tier, unit.optimizer_tier) == (StateTier.DEVICE, StateTier.HOST) for unit in units
        ),
        ClientFeature.OPTIMIZER_NVME: any(unit.optimizer_tier is StateTier.NVME for unit in units),
        ClientFeature.REDUCE_SCATTER_BUFFERS: runtime.reduce_scatter_max_input_buffers > 1,
        ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP: runtime.separate_reduce_scatter_group,
    }
    if request.client_features is None:
        return
    for feature, is_used in used.items():
        if is_used and feature not in request.client_features:
            yield f"the plan uses {feature}, which the request's client_features do not allow"


def _inputs(request: PlanRequest, body: PlanBody) -> Iterator[str]:
    profile = request.profile
    for name, planned, actual in (
        ("model", body.inputs.model, request.model.content_hash()),
        ("cluster", body.inputs.cluster, request.cluster.content_hash()),
        ("workload", body.inputs.workload, request.workload.content_hash()),
        ("profile", body.inputs.profile, profile.content_hash() if profile else None),
        ("request", body.inputs.request, request.content_hash()),
    ):
        if planned != actual:
            yield f"inputs.{name} is {planned}, but the request's is {actual}"
    if body.model_fingerprint != request.model.fingerprint:
        yield f"model_fingerprint is {body.model_fingerprint}, but the model's is {request.model.fingerprint}"
    if body.world_size != request.cluster.num_devices:
        yield f"world size {body.world_size} differs from the cluster's {request.cluster.num_devices} devices"


def _outcome(body: PlanBody) -> Iterator[str]:
    is_feasible = body.outcome == "feasible"
    for name in ("decisions", "predictions", "certificate"):
        if is_feasible and getattr(body, name) is None:
            yield f"a feasible plan needs {name}"
        if not is_feasible and name != "certificate" and getattr(body, name) is not None:
            yield f"an infeasible plan must not have {name}"
    if is_feasible and body.infeasibility is not None:
        yield "a feasible plan must not give a reason why nothing fits"
    if not is_feasible and body.infeasibility is None:
        yield "an infeasible plan needs the reason why nothing fits"


def _breakdown(predictions: Predictions) -> Iterator[str]:
    breakdown, peak = predictions.breakdown, predictions.peak
    parts = breakdown.model_dump()
    total = parts.pop("total_ns")
    if sum(parts.values()) != total:
        yield f"the step's breakdown adds up to {sum(parts.values())} ns, not to total_ns {total}"
    if total != predictions.step_time_ns:
        yield f"breakdown.total_ns {total} differs from step_time_ns {predictions.step_time_ns}"
    categories = sum(peak.by_category_bytes.values())
    if categories != peak.allocated_bytes:
        yield f"categories add up to {categories} bytes, not to allocated_bytes {peak.allocated_bytes}"
    pools = sum(peak.pools_bytes.values())
    if pools != peak.reserved_bytes:
        yield f"pools add up to {pools} bytes, not to reserved_bytes {peak.reserved_bytes}"


def _compared(predictions: Predictions, found: Recomputed) -> Iterator[str]:
    """Differences; counts of collectives are per micro-batch, of the last one where micro-batches differ."""
    peak = predictions.peak
    for name, predicted, actual in (
        ("step_time_ns", predictions.step_time_ns, found.step_time_ns),
        ("breakdown.optimizer_ns", predictions.breakdown.optimizer_ns, found.optimizer_ns),
        ("peak.reserved_bytes", peak.reserved_bytes, found.reserved_bytes),
        ("peak.allocated_bytes", peak.allocated_bytes, found.allocated_bytes),
        ("host_bytes", predictions.host_bytes, found.host_bytes),
        ("nvme_bytes", predictions.nvme_bytes, found.nvme_bytes),
        ("num_all_gathers", predictions.num_all_gathers, found.num_all_gathers),
        ("num_reduce_scatters", predictions.num_reduce_scatters, found.num_reduce_scatters),
        ("num_all_reduces", predictions.num_all_reduces, found.num_all_reduces),
    ):
        if predicted != actual:
            yield f"{name} is predicted as {predicted}, recomputed as {actual}"
    for pool in sorted({*peak.pools_bytes, *found.pools_bytes}):
        predicted, actual = peak.pools_bytes.get(pool, 0), found.pools_bytes.get(pool, 0)
        if predicted != actual:
            yield f"pool {pool!r} is predicted as {predicted} bytes, recomputed as {actual}"
    if predictions.budget != found.budget:
        predicted, actual = predictions.budget.budget_bytes, found.budget.budget_bytes
        yield f"the budget is predicted as {predicted} bytes, recomputed as {actual}, or differs in its parts"


def _limits(request: PlanRequest, found: Recomputed) -> Iterator[str]:
    if found.reserved_bytes > found.budget.budget_bytes:
        yield f"the peak of {found.reserved_bytes} bytes exceeds the budget of {found.budget.budget_bytes}"
    if 0 < found.host_budget_bytes < found.host_bytes:
        yield f"{found.host_bytes} bytes of host memory exceed the {found.host_budget_bytes} that a rank has"
    if found.nvme_bytes and found.nvme_budget_bytes < found.nvme_bytes:
        yield f"{found.nvme_bytes} bytes on NVMe exceed the {found.nvme_budget_bytes} that a rank has"
    limit = request.limits.step_time_ns
    if limit is not None and found.step_time_ns > limit:
        yield f"the step of {found.step_time_ns} ns exceeds the limit of {limit}"


def _certificate(certificate: Certificate, predictions: Predictions, objective: Objective) -> Iterator[str]:
    expected = "step_time_ns" if objective is Objective.STEP_TIME else "peak_memory_bytes"
    if certificate.objective != expected:
        yield f"the certificate is for {certificate.objective}, but the request minimises {expected}"
    is_time = certificate.objective == "step_time_ns"
    value = predictions.step_time_ns if is_time else predictions.peak.reserved_bytes
    if certificate.value != value:
        yield f"certificate.value {certificate.value} differs from the predicted {certificate.objective} {value}"
    if certificate.lower_bound > certificate.value:
        yield f"certificate.lower_bound {certificate.lower_bound} exceeds its value {certificate.value}"
    gap = (certificate.value - certificate.lower_bound) / certificate.value if certificate.value else 0.0
    if not math.isclose(certificate.gap, max(gap, 0.0), rel_tol=1e-6, abs_tol=1e-9):
        yield f"certificate.gap {certificate.gap} should be {gap}"
    if certificate.status == "optimal" and certificate.lower_bound != certificate.value:
        yield "the certificate says optimal, but its bound is below its value"
