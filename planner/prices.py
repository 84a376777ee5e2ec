"""What was not decided, and what limits would be worth: prices under the chosen plan's mesh, grouping and settings.

Both ask the class relaxation of the chosen plan's problem, with the rows that the search has learned, for a bound,
and its placed optima for a plan that attains it (`solver.schedule.heuristic`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.found import Found
from planner.nodes import Tried
from planner.program.choices import Decision
from planner.schema import Alternative, ShadowValue
from planner.space.opened import OpenCandidate
from planner.space.settings import Setting
from solver.schedule.heuristic import Heuristic
from solver.schedule.patterns import with_values
from solver.schedule.problem import Aim, Assignment, Problem

MAX_SETTINGS = 2
"""Other settings that are told of."""
MAX_REPAIRS = 400
"""Assignments that local search may try where those placed exceed the limits."""
_PARTS_OF_BUDGET = (32, 8)
_PARTS_OF_DEADLINE = (100, 20)
"""How much looser limits are tried: such a part of the limit."""


def shadow_values(best: OpenCandidate, assignment: Assignment, *, gap: float) -> tuple[ShadowValue, ...]:
    """What more memory would save in time; or, where memory is minimised within a step time, the reverse.

    Args:
        best: the chosen global choice.
        assignment: the chosen decisions.
        gap: relative distance to the bound at which a price is exact enough.
    """
    return tuple(_shadow_values(best, assignment, gap))


def _shadow_values(best: OpenCandidate, assignment: Assignment, gap: float) -> Iterator[ShadowValue]:
    problem = best.problem
    if problem.aim is Aim.MAKESPAN and problem.budget:
        amounts = [_power_of_two(problem.budget // part) for part in _PARTS_OF_BUDGET]
        looser = [(more, replace(problem, budget=problem.budget + more)) for more in amounts]
    elif problem.aim is not Aim.MAKESPAN and problem.deadline is not None:
        limit = best.optimizer_ns + problem.deadline
        amounts = [max(1, limit // part) for part in _PARTS_OF_DEADLINE]
        looser = [(more, replace(problem, deadline=problem.deadline + more)) for more in amounts]
    else:
        return
    # What the accepted gap leaves is no merit of a looser limit.
    within = _solved(best, problem, assignment, {}, gap).value
    for more, other in looser:
        heuristic = _solved(best, other, assignment, {}, gap)
        yield ShadowValue(
            limit="memory_bytes" if problem.aim is Aim.MAKESPAN else "step_time_ns",
            more=more,
            saves_at_least=max(0, within - heuristic.value),
            saves_at_most=max(0, within - heuristic.lower_bound),
        )


def _power_of_two(amount: int) -> int:
    """The largest that is not above an amount, and at least 1."""
    return 1 << max(0, amount.bit_length() - 1)


def why_not(found: Found, *, gap: float) -> tuple[Alternative, ...]:
    """The best plans found under the chosen global choice with one kind of decision, or one setting, changed."""
    assert found.best is not None
    assert found.assignment is not None
    flips = sorted(_best_of_each(_flips(found.best, found.assignment, gap)))
    others = sorted(_other_settings(found, found.best))[:MAX_SETTINGS]
    return tuple(
        Alternative(change=words, step_time_ns=one.step_ns, reserved_bytes=one.needed_bytes, fits=not one.exceeds)
        for one, words in (*flips, *others)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A value that all decisions of a family could take."""

    group: str
    """Of several in a group, the cheapest is told."""
    words: str


def _value(family: str, label: str) -> _Value:
    if family == "reshard" and label.isdecimal():
        return _Value(group="reshard in part", words=f"every unit reshards to {label} ranks")
    if family == "reshard":
        unit = "every" if label == "True" else "no"
        return _Value(group=f"reshard {label}", words=f"{unit} unit reshards after forward")
    policy = label.partition(":")[0]
    words = {"none": "no block is checkpointed", "full": "every block is checkpointed"}
    in_part = f"every block is checkpointed but for some operations ({label})"
    return _Value(group=policy, words=words.get(policy, in_part))


def _flips(best: OpenCandidate, assignment: Assignment, gap: float) -> Iterator[tuple[_Value, Tried]]:
    """Every family at every value that not all of it have."""
    for family in best.problem.families:
        for label, fixed in _by_label(best.decisions, family.decisions).items():
            if all(assignment[decision] == value for decision, value in fixed.items()):
                continue
            heuristic = _solved(best, best.problem, assignment, fixed, gap)
            yield _value(family.name, label), _tried(best, heuristic)


def _by_label(decisions: tuple[Decision, ...], members: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """For each label the members that have it, with its number there."""
    found: dict[str, dict[int, int]] = {}
    for member in members:
        for number, label in enumerate(decisions[member].labels):
            found.setdefault(label, {})[member] = number
    return found


def _best_of_each(flips: Iterator[tuple[_Value, Tried]]) -> list[tuple[Tried, str]]:
    cheapest: dict[str, tuple[Tried, str]] = {}
    for value, tried in flips:
        known = cheapest.get(value.group)
        cheapest[value.group] = min((tried, value.words), known or (tried, value.words))
    return list(cheapest.values())


def _other_settings(found: Found, best: OpenCandidate) -> Iterator[tuple[Tried, str]]:
    """Settings of the chosen global choice that the search has tried."""
    seen: dict[Setting, Tried] = {}
    for node in found.nodes:
        if node.region.label == best.candidate.label:
            for setting, tried in node.tried.items():
                seen[setting] = min(tried, seen.get(setting, tried))
    for setting, tried in seen.items():
        if setting != best.candidate.setting:
            yield tried, _changes(best.candidate.setting, setting)


def _changes(chosen: Setting, other: Setting) -> str:
    forward, backward = (
        f"{depth} ahead" if depth else "implicit" for depth in (other.forward_prefetch, other.backward_prefetch)
    )
    parts = {
        f"forward prefetch {forward}{other.within}": other.reach != chosen.reach,
        f"backward prefetch {backward}": other.backward_prefetch != chosen.backward_prefetch,
        f"reduce buffers: {other.reduce_buffers}": other.reduce_buffers != chosen.reduce_buffers,
        f"{'own' if other.separate_group else 'no own'} communicator for reduces": other.separate_group
        != chosen.separate_group,
    }
    return ", ".join(words for words, differs in parts.items() if differs)


def _solved(
    best: OpenCandidate, problem: Problem, assignment: Assignment, fixed: Mapping[int, int], gap: float
) -> Heuristic:
    """The best known of a variant of the chosen problem, the chosen decisions among what is tried."""
    heuristic = Heuristic(problem, like=best.heuristic, fixed=fixed)
    heuristic.offer(with_values(assignment, fixed))
    heuristic.guide(gap=gap)
    if not (heuristic.feasible or heuristic.is_infeasible):
        heuristic.improve(max_evaluations=MAX_REPAIRS)
    return heuristic


def _tried(best: OpenCandidate, heuristic: Heuristic) -> Tried:
    return Tried(
        exceeds=not heuristic.feasible,
        value=best.value(heuristic.value),
        step_ns=best.step_ns(heuristic.evaluation),
        needed_bytes=heuristic.evaluation.needed,
    )
