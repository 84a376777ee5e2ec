"""What a search says about a request, against all plans of it; each check yields the differences that it finds."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

from planner.check import check, recompute
from planner.schema import (
    ActivationPolicy,
    Decisions,
    DeviceSheet,
    Infeasibility,
    Limits,
    Objective,
    PlanBody,
    PlanRequest,
)
from planner.simulate import predict
from planner.space.fixed import NoValueLeft
from planner.space.opened import OpenCandidate
from planner.space.regions import Region, regions
from planner.space.sharding import NoCostOnHost
from solver.schedule.problem import Assignment
from solver.schedule.search import Limits as SolverLimits
from solver.schedule.search import prove

Differences = Iterator[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a plan costs by the simulator."""

    step_ns: int
    reserved_bytes: int
    taken_bytes: int
    """Of the device, by what is not tensors."""
    host_bytes: int
    fits_host: bool
    offloads_activations: bool


@dataclass(slots=True)
class Outcomes:
    """Predictions by decisions; no limit changes them."""

    request: PlanRequest
    known: dict[str, Outcome] = field(default_factory=dict)

    def of(self, decisions: Decisions) -> Outcome:
        """Predicted when first asked for."""
        key = decisions.model_dump_json()
        if key not in self.known:
            found = predict(self.request, decisions)
            budget = found.budget
            self.known[key] = Outcome(
                step_ns=found.step_time_ns,
                reserved_bytes=found.peak.reserved_bytes,
                taken_bytes=budget.context_bytes
                + budget.communicators_bytes
                + budget.fragmentation_bytes
                + budget.other_bytes,
                host_bytes=found.host_bytes,
                fits_host=found.host_bytes <= found.host_budget_bytes,
                offloads_activations=any(one.policy is ActivationPolicy.OFFLOAD for one in decisions.activations),
            )
        return self.known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request with an objective and limits; `budget_bytes` is the device's memory, or that of tensors alone."""

    request: PlanRequest
    budget_bytes: int
    is_device: bool

    @classmethod
    def of(
        cls,
        request: PlanRequest,
        budget_bytes: int,
        *,
        is_device: bool,
        objective: Objective = Objective.STEP_TIME,
        step_time_ns: int | None = None,
    ) -> "Question":
        """The request with these limits."""
        limits = Limits(memory_bytes=None if is_device else budget_bytes, step_time_ns=step_time_ns)
        update: dict[str, Any] = {"limits": limits, "objective": objective}
        if is_device:
            (group,) = request.cluster.node_groups
            assert isinstance(group.device, DeviceSheet)
            device = group.device.model_copy(update={"memory_bytes": budget_bytes})
            group = group.model_copy(update={"device": device})
            update["cluster"] = request.cluster.model_copy(update={"node_groups": (group,)})
        return cls(request=request.model_copy(update=update), budget_bytes=budget_bytes, is_device=is_device)

    def __str__(self) -> str:
        limit_ns = self.request.limits.step_time_ns
        what = "the device" if self.is_device else "tensors"
        where = f"{self.request.objective} in {self.budget_bytes} bytes of {what}"
        return where if limit_ns is None else f"{where} and {limit_ns} ns"

    @property
    def minimises_time(self) -> bool:
        """Step time or memory."""
        return self.request.objective is Objective.STEP_TIME

    def needed(self, outcome: Outcome) -> int:
        """What is to be at most the budget."""
        return outcome.reserved_bytes + (outcome.taken_bytes if self.is_device else 0)

    def fits(self, outcome: Outcome) -> bool:
        """Whether device and host hold it."""
        return outcome.fits_host and self.needed(outcome) <= self.budget_bytes

    def keeps(self, outcome: Outcome) -> bool:
        """Whether it fits and is in time."""
        limit_ns = self.request.limits.step_time_ns
        return self.fits(outcome) and (limit_ns is None or outcome.step_ns <= limit_ns)

    def value(self, outcome: Outcome) -> int:
        """What is minimised."""
        return outcome.step_ns if self.minimises_time else outcome.reserved_bytes

    def values(self, outcomes: Iterable[Outcome]) -> list[int]:
        """Of the plans that may be chosen; for time, something is offloaded only where nothing else will do."""
        known = list(outcomes) if self.minimises_time else least_memory_space(outcomes)
        kept = [outcome for outcome in known if self.keeps(outcome)]
        on_device = [outcome for outcome in kept if not outcome.host_bytes]
        return [self.value(outcome) for outcome in (on_device if self.minimises_time and on_device else kept)]


def least_memory_space(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Where memory is minimised activations stay on the device, unless all are offloaded by a fixed choice."""
    known = list(outcomes)
    return [outcome for outcome in known if not outcome.offloads_activations] or known


def listed_regions(request: PlanRequest) -> list[Region]:
    """Without and with units on the host, as far as there are any; the latter in families."""
    found: list[Region] = []
    for on_host in (False, True):
        with suppress(NoValueLeft, NoCostOnHost):
            found += regions(request, on_host=on_host)
    return found


def all_regions(request: PlanRequest) -> list[Region]:
    """Of families every member."""
    return [one for region in listed_regions(request) for one in members(region)]


def any_member(region: Region, rng: Random) -> Region:
    """One of a family; a region itself."""
    while region.is_family:
        region = rng.choice(list(region.parts()))
    return region


def members(region: Region) -> Iterator[Region]:
    """Of a family every one; a region itself."""
    if not region.is_family:
        yield region
        return
    for part in region.parts():
        yield from members(part)


def assignments(item: OpenCandidate) -> Iterator[Assignment]:
    """Every one."""
    return product(*map(range, item.problem.num_values))


def every_plan(
    request: PlanRequest, outcomes: Outcomes, rng: Random, *, num_checked: int
) -> Iterator[tuple[Outcome, list[str]]]:
    """Each plan's outcome, and in what solver and simulator (for some plans the checker too) differ."""
    plans = [
        (item, assignment)
        for region in all_regions(request)
        for item in map(region.open, region.settings)
        for assignment in assignments(item)
    ]
    checked = set(rng.sample(range(len(plans)), min(num_checked, len(plans))))
    for number, (item, assignment) in enumerate(plans):
        decisions = item.unpack(request, assignment)
        where = f"{item.candidate.label}, {item.candidate.setting}: {assignment}"
        found, evaluation = outcomes.of(decisions), item.heuristic.evaluate(assignment)
        differences = []
        solved = (item.step_ns(evaluation), evaluation.peak)
        if solved != (found.step_ns, found.reserved_bytes):
            differences.append(f"{where}: solver {solved}, simulator {found}")
        if number in checked:
            again = recompute(request, decisions)
            if (again.step_time_ns, again.reserved_bytes) != (found.step_ns, found.reserved_bytes):
                differences.append(
                    f"{where}: checker {again.step_time_ns, again.reserved_bytes}, simulator {found}"
                )
        yield found, differences


def region_differences(asked: Question, region: Region, outcomes: Outcomes, *, proves: bool) -> Differences:
    """Bounds of a region above the best of its plans; with `proves` CP-SAT solves its settings too."""
    where = f"{region.label}, {asked}"
    relaxed, floor_bytes = region.relaxed(), region.floor_bytes()
    all_values: list[int] = []
    for setting in region.settings:
        item = region.open(setting)
        values: list[int] = []
        for assignment in assignments(item):
            found, evaluation = (
                outcomes.of(item.unpack(asked.request, assignment)),
                item.heuristic.evaluate(assignment),
            )
            bound = relaxed.heuristic.evaluate(assignment)
            if bound.makespan > evaluation.makespan or bound.needed > evaluation.needed:
                yield f"{where}: relaxed {bound} above {evaluation} of {assignment} under {setting}"
            if floor_bytes > evaluation.needed:
                yield f"{where}: floor {floor_bytes} above {evaluation.needed} bytes"
            if found.fits_host and asked.keeps(found) is not item.problem.is_feasible(evaluation):
                yield f"{where}: {assignment} under {setting} keeps the limits by one of solver and simulator"
            if asked.keeps(found):
                values.append(item.value(item.problem.value(evaluation)))
        yield from _bound_differences(f"{where}, {setting}", item, values)
        if proves:
            yield from _proof_differences(f"{where}, {setting}", item, values)
        all_values += values
    yield from _bound_differences(f"{where}, relaxed", relaxed, all_values)
    if all_values and (region.floor is None or region.floor > min(all_values)):
        yield f"{where}: floor {region.floor} above {min(all_values)}"


def _bound_differences(where: str, item: OpenCandidate, values: Sequence[int]) -> Differences:
    heuristic = item.heuristic
    heuristic.guide(gap=0.0)
    heuristic.sharpen(gap=0.0)
    if not values:
        return
    if heuristic.is_infeasible:
        yield f"{where}: the relaxation is infeasible, but {min(values)} is possible"
    if item.value(heuristic.lower_bound) > min(values):
        yield f"{where}: relaxation {item.value(heuristic.lower_bound)} above {min(values)}"


def _proof_differences(where: str, item: OpenCandidate, values: Sequence[int]) -> Differences:
    """CP-SAT alone, from defaults; a host that is too small is none of its business."""
    found = prove(item.problem, (0,) * item.problem.num_decisions, SolverLimits(deterministic_time=20.0))
    if found.evaluation is None:
        if values:
            yield f"{where}: CP-SAT is {found.status}, but {min(values)} is possible"
    elif values and (item.value(item.problem.value(found.evaluation)), found.status) != (min(values), "optimal"):
        yield f"{where}: CP-SAT is {found.status} with {found.evaluation}, not {min(values)}"


def plan_differences(asked: Question, body: PlanBody, outcomes: Sequence[Outcome]) -> Differences:
    """The plan, or what is said to be needed, against the best of all."""
    gap = asked.request.search.gap
    where = f"{asked}, gap {gap}" if gap else f"{asked}"
    kept = asked.values(outcomes)
    if body.infeasibility is not None:
        if kept:
            yield f"{where}: nothing is found, but {min(kept)} is possible"
        else:
            yield from _infeasibility_differences(where, asked, body.infeasibility, outcomes)
        return
    if body.predictions is None or body.certificate is None or not kept:
        yield f"{where}: a plan, but nothing keeps the limits"
        return
    certificate, best = body.certificate, min(kept)
    predicted = body.predictions
    value = predicted.step_time_ns if asked.minimises_time else predicted.peak.reserved_bytes
    if certificate.value != value or not best <= value <= best / (1 - gap):
        yield f"{where}: {value}, certified as {certificate.value}, in truth {best}"
    if not value * (1 - gap) - 1 <= certificate.lower_bound <= best:
        yield f"{where}: {value} with bound {certificate.lower_bound}, in truth {best}"
    if not gap and certificate.status != "optimal":
        yield f"{where}: {certificate.status} instead of optimal"
    report = check(asked.request, body)
    if not report.passed or certificate.checker != "passed":
        yield f"{where}: the checker says {report.problems}"


def _infeasibility_differences(
    where: str, asked: Question, stated: Infeasibility, outcomes: Sequence[Outcome]
) -> Differences:
    if any(map(asked.fits, outcomes)):
        if stated.binding != "step_time":
            yield f"{where}: {stated.binding} binds, but only the step time does"
        return
    least = min(
        (asked.needed(outcome) for outcome in least_memory_space(outcomes) if outcome.fits_host), default=None
    )
    found = stated.smallest_device_memory_bytes if asked.is_device else stated.needed_bytes
    if least is not None and found != least:
        yield f"{where}: {found} bytes are said to be needed, in truth {least}"
