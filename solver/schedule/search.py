"""Heuristic, then CP-SAT with its hint: the best assignment found and a proven bound."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from ortools.sat.python import cp_model

from solver.schedule.evaluate import Evaluator
from solver.schedule.model import ScheduleModel
from solver.schedule.problem import Assignment, Evaluation, Problem

Progress = Callable[[int | None, int], None]
"""Called with (best value or None, lower bound)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deterministic limits of one CP-SAT run; the wall clock is only a safety net."""

    deterministic_time: float = 10.0
    relative_gap: float = 0.0
    wall_clock_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run found.

    `lower_bound` holds for every assignment within the budget; with a cutoff, for those below it: when
    nothing reaches the cutoff, `assignment` is None and `lower_bound` is one more than it.
    """

    status: Literal["optimal", "bounded", "infeasible", "unknown"]
    assignment: Assignment | None
    evaluation: Evaluation | None
    lower_bound: int
    deterministic_time: float
    wall_clock_struck: bool = False
    is_finished: bool = False
    """The search ended by itself: at the accepted gap, or because nothing is left."""
    interrupted: bool = False
    """A person stopped the run (SIGINT) before any limit did."""


def prove(
    problem: Problem,
    hint: Assignment,
    limits: Limits,
    *,
    cutoff: int | None = None,
    on_progress: Progress | None = None,
) -> Result:
    """Improve on `hint` and prove a bound on what is minimised (at most `cutoff` when given)."""
    built = ScheduleModel(problem, hint)
    built.minimize(cutoff)
    solver = _solver(limits)
    status, interrupted = _solve(solver, built.model, _Watcher(on_progress) if on_progress else None)
    struck = solver.wall_time >= limits.wall_clock_s
    spent = solver.deterministic_time
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        assignment = read_assignment(built, solver)
        return Result(
            status="optimal" if status == cp_model.OPTIMAL and limits.relative_gap == 0 else "bounded",
            assignment=assignment,
            evaluation=Evaluator(problem).evaluate(assignment),
            lower_bound=round(solver.best_objective_bound),
            deterministic_time=spent,
            wall_clock_struck=struck,
            is_finished=status == cp_model.OPTIMAL,
            interrupted=interrupted,
        )
    infeasible = status == cp_model.INFEASIBLE
    beaten = 0 if cutoff is None else cutoff + 1
    bound = beaten if infeasible else max(0, round(solver.best_objective_bound))
    return Result(
        status="infeasible" if infeasible else "unknown",
        assignment=None,
        evaluation=None,
        lower_bound=bound,
        deterministic_time=spent,
        wall_clock_struck=struck,
        is_finished=infeasible,
        interrupted=interrupted,
    )


def _solve(
    solver: cp_model.CpSolver, model: cp_model.CpModel, watcher: "_Watcher | None" = None
) -> tuple[cp_model.CpSolverStatus, bool]:
    """Status, and whether a person stopped the run (SIGINT).

    CP-SAT can catch the signal itself, but then hides it and leaves the process without Python's handler. So it
    runs beside the main thread, which waits for both.
    """
    with ThreadPoolExecutor(max_workers=1) as beside:
        run = beside.submit(solver.solve, model, watcher)
        try:
            return run.result(), False
        except KeyboardInterrupt:
            solver.stop_search()
            return run.result(), True


def read_assignment(built: ScheduleModel, solver: cp_model.CpSolver) -> Assignment:
    """Values of all decisions in the solver's solution."""
    return tuple(
        next(v for v in range(size) if solver.boolean_value(built.literal(decision, v)))
        for decision, size in enumerate(built.problem.num_values)
    )


def _solver(limits: Limits) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_deterministic_time = limits.deterministic_time
    solver.parameters.max_time_in_seconds = limits.wall_clock_s
    solver.parameters.relative_gap_limit = limits.relative_gap
    solver.parameters.linearization_level = 2
    return solver


class _Watcher(cp_model.CpSolverSolutionCallback):
    def __init__(self, on_progress: Progress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def on_solution_callback(self) -> None:
        self._on_progress(round(self.objective_value), round(self.best_objective_bound))


__all__: Sequence[str] = ("Limits", "Progress", "Result", "prove", "read_assignment")
