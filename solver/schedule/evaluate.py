"""Earliest times and pool peaks of one assignment, exactly: a pass over the activities, and one matrix product."""

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


_Compiled = tuple[int, int, bool, Any, int, int, int, tuple[int, ...], bool, bool]
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
                    self._steps.append((*head, True, step.chains, *times, step.blocks_issuer, step.is_issued))
                case Barrier():
                    self._steps.append((*head, False, step.chain, step.activity, 0, 0, (), False, False))

    def makespan(self, holds: Sequence[bool]) -> int:
        problem = self._problem
        chains = [0] * problem.num_chains
        ends = [0] * len(problem.steps)
        issued = 0
        for number, when, is_activity, target, amount, lead, issue, waits, blocks, is_issued in self._steps:
            if not holds[when]:
                continue
            if not is_activity:
                end = ends[amount]
                if end > chains[target]:
                    chains[target] = end
                continue
            start = issued + lead if is_issued else 0
            issued += issue
            for chain in target:
                if chains[chain] > start:
                    start = chains[chain]
            for activity in waits:
                end = ends[activity]
                if end > start:
                    start = end
            end = start + amount
            if issued > end and is_issued:
                end = issued
            for chain in target:
                chains[chain] = end
            ends[number] = end
            if blocks and end > issued:
                issued = end
        return max(chains[problem.final_chain], issued)


class _Memory:
    """A level of a pool is a constant plus the bytes of the conditions that hold; the peak is the highest.

    A touch whose condition does not hold leaves the level as it is, which is reached anyway. Sums stay below 2^53,
    so floating point is exact.
    """

    def __init__(self, problem: Problem, conditions: dict[Condition, int]) -> None:
        self._num_pools = problem.num_pools
        rows: dict[tuple[int, bytes], None] = {}
        levels = np.zeros((problem.num_pools, len(conditions)))
        for step in problem.steps:
            if not isinstance(step, Change | Touch):
                continue
            level = levels[step.pool].copy() if isinstance(step, Touch) else levels[step.pool]
            level[conditions[step.when]] += step.amount
            if step.amount > 0:
                rows[step.pool, level.tobytes()] = None
        self._pools = np.array([pool for pool, _ in rows], dtype=np.int64)
        self._rows = np.array([np.frombuffer(row) for _, row in rows]).reshape(len(rows), len(conditions))

    def peaks(self, holds: Sequence[bool]) -> tuple[int, ...]:
        reached = self._rows @ np.array(holds, dtype=np.float64)
        peaks = np.zeros(self._num_pools)
        np.maximum.at(peaks, self._pools, reached)
        return tuple(int(peak) for peak in peaks)
