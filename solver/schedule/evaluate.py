"""Makespans and pool peaks of an assignment, exactly: a pass over the activities, running sums for memory.

[Note: repeated evaluation]
Searches evaluate thousands of assignments that differ in a few decisions. A pass over the activities starts from
the state that the pass before had where the first one under a changed decision comes; states are kept every
`_STRIDE` activities.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from solver.schedule.problem import (
    Activity,
    Assignment,
    Barrier,
    Change,
    Condition,
    Evaluation,
    Problem,
    Step,
    Stop,
    Touch,
    holds,
)

_STRIDE = 200


class Evaluator:
    """Evaluates assignments of one problem; everything that does not depend on them is worked out once."""

    def __init__(self, problem: Problem) -> None:
        steps = [step for one in problem.rounds for step in one.steps]
        self._problem = problem
        self.conditions: tuple[Condition, ...] = ((), *sorted({step.when for step in steps if step.when}))
        """All conditions, the empty one first."""
        numbers = {when: number for number, when in enumerate(self.conditions)}
        self._evaluated = Presence(self.conditions, problem.num_decisions)
        """At the assignment evaluated last."""
        self._times = [(_Times(problem, one.steps, numbers), one.count) for one in problem.rounds]
        self.pools = [
            [Pool(one.steps, pool, numbers) for one in problem.rounds] for pool in range(problem.num_pools)
        ]
        """For each pool its steps in each round."""

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and pool peaks."""
        changed = self._evaluated.move_to(assignment)
        present = self._evaluated.present
        flags = np.array(present, dtype=np.int64)
        return Evaluation(
            makespan=sum(count * times.makespan(present, changed) for times, count in self._times),
            pool_peaks=tuple(max(pool.peak(flags) for pool in rounds) for rounds in self.pools),
            reserved=sum(one.amount for one in self._problem.reserves if holds(one.when, assignment)),
        )

    def present(self, assignment: Assignment) -> list[bool]:
        """Of each of `conditions` whether it holds."""
        return [holds(when, assignment) for when in self.conditions]


class Presence:
    """Which conditions hold; on the way to another assignment only those on changed decisions are looked at."""

    def __init__(self, conditions: Sequence[Condition], num_decisions: int) -> None:
        self._conditions = conditions
        self._assignment: Assignment = (-1,) * num_decisions
        self._about: list[list[int]] = [[] for _ in range(num_decisions)]
        """For each decision the conditions on it."""
        for number, when in enumerate(conditions):
            for decision in {decision for decision, _ in when if decision >= 0}:
                self._about[decision].append(number)
        self.present = [not when for when in conditions]
        """Of each condition whether it holds."""

    def move_to(self, assignment: Assignment) -> list[int]:
        """Conditions that held before and do not now, or the other way round."""
        moved = [
            decision
            for decision, (old, new) in enumerate(zip(self._assignment, assignment, strict=True))
            if old != new
        ]
        self._assignment = assignment
        changed = []
        for number in {number for decision in moved for number in self._about[decision]}:
            now = holds(self._conditions[number], assignment)
            if now is not self.present[number]:
                self.present[number] = now
                changed.append(number)
        return changed


_Compiled = tuple[int, int, int, Any, int, int, int, tuple[int, ...]]
"""One flat shape for activities, barriers and stops: the loop over them is the inner loop of every heuristic."""
_ACTIVITY, _BARRIER, _STOP = range(3)


class _Times:
    """Max-plus recurrence in issue order."""

    def __init__(self, problem: Problem, steps: Sequence[Step], conditions: dict[Condition, int]) -> None:
        self._final_chain = problem.final_chain
        self._num_steps = len(steps)
        self._steps: list[_Compiled] = []
        self._first: dict[int, int] = {}
        """For each condition the place of the first step under it."""
        for number, step in enumerate(steps):
            when = conditions[step.when]
            match step:
                case Activity():
                    times = (step.duration, step.lead, step.issue, step.waits)
                    compiled: _Compiled = (number, when, _ACTIVITY, step.chains, *times)
                case Barrier():
                    compiled = (number, when, _BARRIER, step.chain, step.activity, 0, 0, ())
                case Stop():
                    compiled = (number, when, _STOP, 0, step.activity, 0, 0, ())
                case _:
                    continue
            self._first.setdefault(when, len(self._steps))
            self._steps.append(compiled)
        self._states: list[tuple[int, list[int], int]] = [(0, [0] * problem.num_chains, 0)]
        """(place, clocks of the chains before it, clock of the issuer), of the last pass."""
        self._ends = [0] * len(steps)
        """Of the last pass; those of later steps are overwritten before they are read."""

    def makespan(self, present: Sequence[bool], changed: Iterable[int]) -> int:
        """Of one run.

        Args:
            present: of each condition whether it holds.
            changed: conditions of which the last call had another.
        """
        place, chains, issued = self._start(changed)
        ends, steps = self._ends, self._steps
        for begin in range(place, len(steps), _STRIDE):
            if begin > place:
                self._states.append((begin, chains.copy(), issued))
            for number, when, kind, target, amount, lead, issue, waits in steps[begin : begin + _STRIDE]:
                if not present[when]:
                    ends[number] = 0
                    continue
                if kind == _ACTIVITY:
                    start = issued + lead
                    issued += issue
                    for chain in target:
                        if chains[chain] > start:
                            start = chains[chain]
                    for activity in waits:
                        end = ends[activity]
                        if end > start:
                            start = end
                    end = start + amount
                    if issued > end:
                        end = issued
                    for chain in target:
                        chains[chain] = end
                    ends[number] = end
                elif kind == _BARRIER:
                    end = ends[amount]
                    if end > chains[target]:
                        chains[target] = end
                elif ends[amount] > issued:
                    issued = ends[amount]
        return max(chains[self._final_chain], issued)

    def _start(self, changed_conditions: Iterable[int]) -> tuple[int, list[int], int]:
        """The last kept state before anything that has changed."""
        last = len(self._steps)
        changed = min((self._first.get(when, last) for when in changed_conditions), default=last)
        index = bisect_right(self._states, changed, key=lambda state: state[0]) - 1
        del self._states[index + 1 :]
        place, chains, issued = self._states[index]
        return place, chains.copy(), issued


class Pool:
    """Changes and touches of one pool in one round as arrays; the level starts at 0."""

    def __init__(self, steps: Sequence[Step], pool: int, conditions: dict[Condition, int]) -> None:
        changes: list[tuple[int, int]] = []
        touches: list[tuple[int, int, int]] = []
        for step in steps:
            if isinstance(step, Change) and step.pool == pool:
                changes.append((step.amount, conditions[step.when]))
            elif isinstance(step, Touch) and step.pool == pool:
                touches.append((step.amount, conditions[step.when], len(changes)))
        self.changes = np.array(changes, dtype=np.int64).reshape(-1, 2).T
        """Amounts and conditions."""
        self.touches = np.array(touches, dtype=np.int64).reshape(-1, 3).T
        """Amounts, conditions, and how many changes came before."""

    def peak(self, present: np.ndarray) -> int:
        """The most at once."""
        amounts, conditions = self.changes
        levels = np.concatenate(([0], np.cumsum(amounts * present[conditions])))
        peak = int(levels.max())
        if self.touches.size:
            amounts, conditions, places = self.touches
            peak = max(peak, int((levels[places] + amounts * present[conditions]).max()))
        return peak
