"""Earliest times and pool peaks of an assignment, exactly: a pass over the activities, running sums for memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from solver.schedule.problem import Activity, Assignment, Barrier, Change, Condition, Evaluation, Problem, Touch


class Evaluator:
    """Evaluates assignments of one problem; everything that does not depend on them is worked out once."""

    def __init__(self, problem: Problem) -> None:
        self._conditions = sorted({step.when for step in problem.steps if step.when})
        numbers = {when: number for number, when in enumerate(self._conditions, start=1)}
        numbers[()] = 0
        self._times = _Times(problem, numbers)
        self._memory = _Memory(problem, numbers)

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and pool peaks."""
        holds = [True]
        for when in self._conditions:
            for decision, value in when:
                if assignment[decision] != value:
                    holds.append(False)
                    break
            else:
                holds.append(True)
        return Evaluation(makespan=self._times.makespan(holds), pool_peaks=self._memory.peaks(holds))


_Compiled = tuple[int, int, bool, Any, int, int, int, tuple[int, ...], bool]
"""One flat shape for activities and barriers: the loop over them is the inner loop of the heuristic."""


class _Times:
    """Max-plus recurrence in issue order."""

    def __init__(self, problem: Problem, conditions: dict[Condition, int]) -> None:
        self._problem = problem
        self._steps: list[_Compiled] = []
        for number, step in enumerate(problem.steps):
            head = (number, conditions[step.when])
            match step:
                case Activity():
                    times = (step.duration, step.lead, step.issue, step.waits)
                    self._steps.append((*head, True, step.chains, *times, step.blocks_issuer))
                case Barrier():
                    self._steps.append((*head, False, step.chain, step.activity, 0, 0, (), False))

    def makespan(self, holds: Sequence[bool]) -> int:
        problem = self._problem
        chains = [0] * problem.num_chains
        ends = [0] * len(problem.steps)
        issued = 0
        for number, when, is_activity, target, amount, lead, issue, waits, blocks in self._steps:
            if not holds[when]:
                continue
            if not is_activity:
                end = ends[amount]
                if end > chains[target]:
                    chains[target] = end
                continue
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
            if blocks and end > issued:
                issued = end
        return max(chains[problem.final_chain], issued)


class _Memory:
    """Levels of the pools as running sums, and the touches on top of them."""

    def __init__(self, problem: Problem, conditions: dict[Condition, int]) -> None:
        self._pools = [_Pool(problem, pool, conditions) for pool in range(problem.num_pools)]

    def peaks(self, holds: Sequence[bool]) -> tuple[int, ...]:
        present = np.array(holds, dtype=np.int64)
        return tuple(pool.peak(present) for pool in self._pools)


class _Pool:
    """Changes and touches of one pool as arrays; the level starts at 0."""

    def __init__(self, problem: Problem, pool: int, conditions: dict[Condition, int]) -> None:
        changes: list[tuple[int, int]] = []
        touches: list[tuple[int, int, int]] = []
        for step in problem.steps:
            if isinstance(step, Change) and step.pool == pool:
                changes.append((step.amount, conditions[step.when]))
            elif isinstance(step, Touch) and step.pool == pool:
                touches.append((step.amount, conditions[step.when], len(changes)))
        self._changes = np.array(changes, dtype=np.int64).reshape(-1, 2).T
        self._touches = np.array(touches, dtype=np.int64).reshape(-1, 3).T

    def peak(self, present: np.ndarray) -> int:
        amounts, conditions = self._changes
        levels = np.concatenate(([0], np.cumsum(amounts * present[conditions])))
        peak = int(levels.max())
        if self._touches.size:
            amounts, conditions, places = self._touches
            peak = max(peak, int((levels[places] + amounts * present[conditions]).max()))
        return peak
