"""Linear bounds on makespan and memory that hold for every assignment: the rows of the class relaxation.

A row is `constant + sum of amount l(decision, value)`, never more than what it bounds. Conditions on several
decisions are bounded by one literal, or by nothing: where all must hold, additions are left out and subtractions
counted by one of them; where one must, additions are counted by one and subtractions always.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from solver.schedule.bounds import StaticBounds
from solver.schedule.evaluate import Evaluator, Pool
from solver.schedule.paths import LongestPaths
from solver.schedule.problem import ANY, Activity, Assignment, Barrier, Condition, Round, Stop, holds

_NEVER = -(2**62)
Literal = tuple[int, int]
"""(decision, value)."""


@dataclass(frozen=True, slots=True)
class Row:
    """See the module docstring."""

    constant: int
    terms: tuple[tuple[Literal, int], ...]

    @classmethod
    def of(cls, constant: int, amounts: Mapping[Condition, int]) -> "Row":
        """Sum of a constant and conditional amounts, bounded from below."""
        terms: dict[Literal, int] = defaultdict(int)
        for when, amount in amounts.items():
            is_any = when[:1] == (ANY,)
            if not when or (is_any and amount < 0):
                constant += amount
            elif len(when) == 1 or is_any or amount < 0:
                terms[when[-1]] += amount
        return cls(constant, tuple(sorted((literal, amount) for literal, amount in terms.items() if amount)))

    def value(self, assignment: Assignment) -> int:
        """The row at an assignment."""
        return self.constant + sum(
            amount for (decision, value), amount in self.terms if assignment[decision] == value
        )


class MemoryRows:
    """Rows `K_pool >= level at a place (+ touch)`, made on demand."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._conditions = evaluator.conditions
        self._pools = evaluator.pools

    def worst(self, pool: int, assignment: Assignment) -> Row:
        """The row of the pool's highest moment under an assignment."""
        present = np.array(self._evaluator.present(assignment), dtype=np.int64)
        peaks = [(one.peak(present), index) for index, one in enumerate(self._pools[pool])]
        _, index = max(peaks, key=lambda found: (found[0], -found[1]))
        return self._row(self._pools[pool][index], present)

    def _row(self, pool: Pool, present: np.ndarray) -> Row:
        amounts, conditions = pool.changes
        levels = np.concatenate(([0], np.cumsum(amounts * present[conditions])))
        place, touches = int(levels.argmax()), {}
        if pool.touches.size:
            heights, whens, places = pool.touches
            tops = levels[places] + heights * present[whens]
            if tops.max() > levels[place]:
                touch = int(tops.argmax())
                place = int(places[touch])
                touches = self._touches(pool, place, int(whens[touch]))
        sums = np.bincount(conditions[:place], weights=amounts[:place], minlength=len(self._conditions))
        found = {self._conditions[number]: int(sums[number]) for number in np.flatnonzero(sums)}
        for when, amount in touches.items():
            found[when] = found.get(when, 0) + amount
        return Row.of(0, found)

    def _touches(self, pool: Pool, place: int, when: int) -> dict[Condition, int]:
        """The touch under a condition, and those of other values of the same decision at the same place."""
        decision = {literal[0] for literal in self._conditions[when]}
        heights, whens, places = pool.touches
        found: dict[Condition, int] = {}
        for touch in np.flatnonzero(places == place):
            other = self._conditions[int(whens[touch])]
            alike = len(other) == len(decision) == 1 and {literal[0] for literal in other} == decision
            if alike or int(whens[touch]) == when:
                found[other] = max(found.get(other, 0), int(heights[touch]))
        return found


class TimeRows:
    """Rows `makespan of a round >= earliest start + sum of durations on a chain + least time after them`.

    Activities of a chain exclude each other. Any run of neighbours among them starts no earlier than the first of
    them can, and after the last of them at least its least tail follows. A window that may be empty bounds nothing
    beyond what holds without it.
    """

    def __init__(self, one: Round, final_chain: int, num_chains: int) -> None:
        self._paths_of = partial(LongestPaths, one, final_chain, num_chains)
        starts = earliest_starts(one, num_chains)
        tails = least_tails(one, final_chain, num_chains)
        self._issues = [(step.when, step.issue) for step in one.steps if isinstance(step, Activity) and step.issue]
        self._chains: list[list[_Member]] = [[] for _ in range(num_chains)]
        for number, step in enumerate(one.steps):
            tail = tails[number]
            if isinstance(step, Activity) and tail is not None:
                for chain in step.chains:
                    self._chains[chain].append(_Member(starts[number], step.duration, tail, step.when))
        for members in self._chains:
            _make_monotone(members)
        self._static = StaticBounds(one.steps, final_chain).makespan

    def best(self, assignment: Assignment) -> Iterator[Row]:
        """Of each chain the row that is highest at an assignment, and that of the issuer."""
        for members in self._chains:
            if members:
                yield self._best_window(members, assignment)
        amounts: dict[Condition, int] = defaultdict(int)
        for when, issue in self._issues:
            amounts[when] += issue
        if amounts:
            yield Row.of(0, amounts)

    @cached_property
    def _paths(self) -> LongestPaths:
        """Worked out when first asked for."""
        return self._paths_of()

    def longest_path(self, assignment: Assignment) -> Row:
        """The row that is highest at an assignment of those along several chains."""
        return Row.of(0, self._paths.longest(assignment))

    def _best_window(self, members: Sequence["_Member"], assignment: Assignment) -> Row:
        """Window [i, j] with the highest start_i + durations + tail_j, in one pass."""
        best, window = -1, (0, 0)
        opening, opened = _NEVER, 0
        spent = 0
        for place, member in enumerate(members):
            if member.start - spent > opening:
                opening, opened = member.start - spent, place
            if len(member.when) < 2 and holds(member.when, assignment):
                spent += member.duration
            if opening + spent + member.tail > best:
                best, window = opening + spent + member.tail, (opened, place)
        first, last = window
        amounts: dict[Condition, int] = defaultdict(int)
        for member in members[first : last + 1]:
            amounts[member.when] += member.duration
        around = members[first].start + members[last].tail
        return Row.of(around if () in amounts else min(around, self._static), amounts)


@dataclass(slots=True)
class _Member:
    start: int
    duration: int
    tail: int
    when: Condition


def _make_monotone(members: list[_Member]) -> None:
    """A window needs the least start and the least tail in it.

    Starts never fall along a chain and tails never rise, as far as unconditional steps decide them; conditional
    ones may break that, and are brought in line.
    """
    for place in range(len(members) - 2, -1, -1):
        members[place].start = min(members[place].start, members[place + 1].start)
    for place in range(1, len(members)):
        members[place].tail = min(members[place].tail, members[place - 1].tail)


def earliest_starts(one: Round, num_chains: int) -> list[int]:
    """For each activity a start that no assignment beats; 0 for other steps."""
    clocks = [0] * num_chains
    ends = [0] * len(one.steps)
    starts = [0] * len(one.steps)
    issued = 0
    for number, step in enumerate(one.steps):
        match step:
            case Activity():
                before = [issued + step.lead] + [clocks[chain] for chain in step.chains]
                starts[number] = max(before + [ends[wait] for wait in step.waits])
                if step.when:
                    continue
                issued += step.issue
                ends[number] = max(starts[number] + step.duration, issued)
                for chain in step.chains:
                    clocks[chain] = ends[number]
            case Barrier() if not step.when:
                clocks[step.chain] = max(clocks[step.chain], ends[step.activity])
            case Stop() if not step.when:
                issued = max(issued, ends[step.activity])
    return starts


def least_tails(one: Round, final_chain: int, num_chains: int) -> list[int | None]:
    """For each activity the least time from its end to the makespan; None where it need not end before that."""
    after: list[int | None] = [None] * num_chains
    """From the moment that a chain is free before a step."""
    after[final_chain] = 0
    waited: dict[int, int] = {}
    tails: list[int | None] = [None] * len(one.steps)
    for number in range(len(one.steps) - 1, -1, -1):
        step = one.steps[number]
        match step:
            case Activity():
                known = [after[chain] for chain in step.chains] + [waited.get(number)]
                found = [tail for tail in known if tail is not None]
                if not found:
                    continue
                tails[number] = max(found)
                if step.when:
                    continue
                through = max(found) + step.duration
                for chain in step.chains:
                    after[chain] = max(through, after[chain] or 0)
                for wait in step.waits:
                    waited[wait] = max(through, waited.get(wait, 0))
            case Barrier() if not step.when:
                tail = after[step.chain]
                if tail is not None:
                    waited[step.activity] = max(tail, waited.get(step.activity, 0))
            case Stop() if not step.when:
                waited.setdefault(step.activity, 0)
    return tails
