"""Earliest times and pool peaks of one assignment: a single pass over the steps (max-plus on integers)."""

from typing import Any

from solver.schedule.problem import (
    Activity,
    Assignment,
    Barrier,
    Change,
    Condition,
    Evaluation,
    Problem,
    Step,
    Touch,
)


class Evaluator:
    """Evaluates assignments of one problem; steps are compiled once into flat tuples."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._steps = [_compile(step) for step in problem.steps]

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and pool peaks, exactly."""
        problem = self._problem
        chains = [0] * problem.num_chains
        levels = [0] * problem.num_pools
        peaks = [0] * problem.num_pools
        ends: dict[int, int] = {}
        issued = 0
        for number, (kind, when, a, b, c, d, e, f, g) in enumerate(self._steps):
            if when is not None:
                for decision, value in when:
                    if assignment[decision] != value:
                        break
                else:
                    decision = -1
                if decision >= 0:
                    continue
            if kind == _CHANGE:
                level = levels[a] + b
                levels[a] = level
                if level > peaks[a]:
                    peaks[a] = level
            elif kind == _TOUCH:
                level = levels[a] + b
                if level > peaks[a]:
                    peaks[a] = level
            elif kind == _ACTIVITY:
                start = issued + c if g else 0
                issued += d
                for chain in a:
                    if chains[chain] > start:
                        start = chains[chain]
                for activity in e:
                    end = ends.get(activity, 0)
                    if end > start:
                        start = end
                end = start + b
                if issued > end and g:
                    end = issued
                for chain in a:
                    chains[chain] = end
                ends[number] = end
                if f and end > issued:
                    issued = end
            else:
                end = ends.get(b, 0)
                if end > chains[a]:
                    chains[a] = end
        return Evaluation(makespan=max(chains[problem.final_chain], issued), pool_peaks=tuple(peaks))


_ACTIVITY, _BARRIER, _CHANGE, _TOUCH = range(4)
_Compiled = tuple[int, Condition | None, Any, int, int, int, tuple[int, ...], bool, bool]
"""One flat shape for all kinds: the loop over it is the inner loop of the heuristic."""


def _compile(step: Step) -> _Compiled:
    match step:
        case Activity():
            return (
                _ACTIVITY,
                step.when or None,
                step.chains,
                step.duration,
                step.lead,
                step.issue,
                step.waits,
                step.blocks_issuer,
                step.is_issued,
            )
        case Barrier():
            return (_BARRIER, step.when or None, step.chain, step.activity, 0, 0, (), False, False)
        case Change():
            return (_CHANGE, step.when or None, step.pool, step.amount, 0, 0, (), False, False)
        case Touch():
            return (_TOUCH, step.when or None, step.pool, step.amount, 0, 0, (), False, False)
