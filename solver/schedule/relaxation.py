"""The class relaxation: a small problem whose optimum bounds the large one, and says how many of a class do what.

It keeps a few rows (see `solver.schedule.rows`) of the many that decide a schedule. Decisions that look alike to
all of these rows form a class, of which only the number at each value matters: a model with a thousand equal blocks
has the relaxation of a model with ten. Where its optimum cannot be placed, the row that it broke is added, as in
any cutting-plane method.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import Counts
from solver.schedule.problem import Aim, Assignment, Problem
from solver.schedule.rows import MemoryRows, Row, TimeRows

_DETERMINISTIC_TIME = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Optimum of the relaxation, or nearly."""

    lower_bound: int
    """No feasible assignment has a smaller value of what is minimised."""
    counts: Counts
    is_feasible: bool = True
    """False: no assignment keeps budget and deadline."""


class Relaxation:
    """Rows known so far, and the small problem that they make."""

    def __init__(self, problem: Problem, evaluator: Evaluator) -> None:
        self.problem = problem
        self._memory = MemoryRows(evaluator)
        self._times = [TimeRows(one, problem.final_chain, problem.num_chains) for one in problem.rounds]
        self._pool_rows: list[dict[Row, None]] = [{} for _ in range(problem.num_pools)]
        self._time_rows: list[dict[Row, None]] = [{} for _ in problem.rounds]
        self.follows_paths = False
        """Longest paths are among the rows that are learned."""
        for assignment in references(problem):
            self.learn(assignment)

    def learn(self, assignment: Assignment) -> bool:
        """Add the rows that are highest at an assignment; whether any is new."""
        before = self._num_rows
        for pool, rows in enumerate(self._pool_rows):
            rows[self._memory.worst(pool, assignment)] = None
        for rows, times in zip(self._time_rows, self._times, strict=True):
            rows.update(dict.fromkeys(times.best(assignment)))
            if self.follows_paths:
                rows[times.longest_path(assignment)] = None
        return self._num_rows > before

    @property
    def _num_rows(self) -> int:
        return sum(map(len, (*self._pool_rows, *self._time_rows)))

    def of(self, problem: Problem) -> "Relaxation":
        """The relaxation of a problem that differs in budget, deadline and aim alone, with the same rows."""
        other = copy(self)
        other.problem = problem
        return other

    def solve(self, fixed: Mapping[int, int], *, gap: float = 0.0) -> Relaxed:
        """Its optimum, or what is as near to it as the gap, where some decisions are taken."""
        return _Small(self, fixed).solve(gap)

    @property
    def pool_rows(self) -> Sequence[Iterable[Row]]:
        """Rows of each pool."""
        return self._pool_rows

    @property
    def time_rows(self) -> Sequence[Iterable[Row]]:
        """Rows of each round."""
        return self._time_rows


def references(problem: Problem) -> Iterator[Assignment]:
    """Each family at each of its values, all others at their default."""
    yield (0,) * problem.num_decisions
    for family in problem.families:
        sizes = [problem.num_values[decision] for decision in family.decisions]
        for value in range(1, max(sizes, default=0)):
            chosen = [0] * problem.num_decisions
            for decision, size in zip(family.decisions, sizes, strict=True):
                chosen[decision] = min(value, size - 1)
            yield tuple(chosen)


class _Small:
    """The relaxation as a CP-SAT model over counts.

    sum over v of n(class, v) = size of the class
    M_r >= constant + sum of amount n / size      for each time row of round r
    K_p >= likewise                               for each memory row of pool p
    sum of K_p + reserves <= budget, sum of count M_r <= deadline
    """

    def __init__(self, relaxation: Relaxation, fixed: Mapping[int, int]) -> None:
        self._problem = problem = relaxation.problem
        self._model = cp_model.CpModel()
        rows = [row for group in (*relaxation.pool_rows, *relaxation.time_rows) for row in group]
        sums: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
        for reserve in problem.reserves:
            sums[reserve.when] += reserve.amount
        reserves = Row.of(0, sums)
        self._classes = _classes(problem, [*rows, reserves], fixed)
        self._counts = [
            [self._model.new_int_var(0, len(members), "n") for _ in range(problem.num_values[members[0]])]
            for members in self._classes
        ]
        self._place = {members[0]: index for index, members in enumerate(self._classes)}
        for members, counts in zip(self._classes, self._counts, strict=True):
            self._model.add(sum(counts) == len(members))
            if members[0] in fixed:
                self._model.add(counts[fixed[members[0]]] == len(members))
        self._peaks: cp_model.LinearExpr | int = 0
        for group in relaxation.pool_rows:
            peak = self._model.new_int_var(0, _most(group), "K")
            for row in group:
                self._model.add(peak >= self._expr(row))
            self._peaks = self._peaks + peak
        self._needed = self._peaks + self._expr(reserves)
        self._makespan: cp_model.LinearExpr | int = 0
        for one, group in zip(problem.rounds, relaxation.time_rows, strict=True):
            makespan = self._model.new_int_var(0, _most(group), "M")
            for row in group:
                self._model.add(makespan >= self._expr(row))
            self._makespan = self._makespan + one.count * makespan

    def _expr(self, row: Row) -> cp_model.LinearExpr | int:
        """Members of a class have equal amounts, so that the first stands for all."""
        expr: cp_model.LinearExpr | int = row.constant
        for (decision, value), amount in row.terms:
            if decision in self._place:
                expr = expr + amount * self._counts[self._place[decision]][value]
        return expr

    def solve(self, gap: float) -> Relaxed:
        if self._problem.budget is not None:
            self._model.add(self._needed <= self._problem.budget)
        if self._problem.deadline is not None:
            self._model.add(self._makespan <= self._problem.deadline)
        goal = {Aim.MEMORY: self._needed, Aim.PEAK: self._peaks, Aim.MAKESPAN: self._makespan}[self._problem.aim]
        self._model.minimize(goal)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        solver.parameters.max_deterministic_time = _DETERMINISTIC_TIME
        solver.parameters.linearization_level = 2
        solver.parameters.relative_gap_limit = gap
        status = solver.solve(self._model)
        if status == cp_model.INFEASIBLE:
            return Relaxed(lower_bound=0, counts=(), is_feasible=False)
        bound = max(0, round(solver.best_objective_bound))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Relaxed(lower_bound=bound, counts=())
        self._prefer_defaults(solver, goal)
        return Relaxed(
            lower_bound=bound,
            counts=tuple(
                (members, tuple(solver.value(count) for count in counts))
                for members, counts in zip(self._classes, self._counts, strict=True)
            ),
        )

    def _prefer_defaults(self, solver: cp_model.CpSolver, goal: cp_model.LinearExpr | int) -> None:
        """Among optima the one that leaves most decisions at their default."""
        best = solver.value(goal)
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        for counts in self._counts:
            for count in counts:
                self._model.add_hint(count, solver.value(count))
        self._model.add(goal <= best)
        self._model.maximize(sum(counts[0] for counts in self._counts))
        solver.solve(self._model)


def _most(rows: Iterable[Row]) -> int:
    """No optimum needs more than the largest that a row can be."""
    return max((row.constant + sum(abs(amount) for _, amount in row.terms) for row in rows), default=0)


def _classes(problem: Problem, rows: Sequence[Row], fixed: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Decisions with the same amounts at each value in all rows, and the same value where they are taken."""
    columns: list[dict[tuple[int, int], int]] = [{} for _ in range(problem.num_decisions)]
    for number, row in enumerate(rows):
        for (decision, value), amount in row.terms:
            columns[decision][number, value] = amount
    family = {decision: one.name for one in problem.families for decision in one.decisions}
    found: dict[object, list[int]] = defaultdict(list)
    for decision, column in enumerate(columns):
        amounts = tuple(sorted(column.items()))
        key = (family.get(decision), problem.num_values[decision], amounts, fixed.get(decision))
        found[key].append(decision)
    return [tuple(members) for members in found.values()]
