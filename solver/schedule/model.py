"""CP-SAT model of a scheduling problem; every constraint family is one method with its equation.

Notation: `l` literal of a condition, `d` duration, `e` end of an activity, `T_c` clock of chain `c` before it and
`T'_c` after it, `I` clock of the issuer, `L_p` level of pool `p`, `K_p` peak of pool `p`. All variables carry the
value that the hint gives them, so that a complete hint (times and levels included) costs nothing to extend.
"""

from dataclasses import dataclass
from typing import cast

from ortools.sat.python import cp_model

from solver.schedule.bounds import StaticBounds
from solver.schedule.cuts import path_cuts
from solver.schedule.problem import Activity, Assignment, Barrier, Change, Condition, Problem, Touch

Expr = cp_model.LinearExpr | int
Literal = cp_model.IntVar
"""A Boolean variable or its negation."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """A linear expression and its value under the hint."""

    expr: Expr
    value: int

    def plus(self, amount: int) -> "Tracked":
        """The expression shifted by a constant."""
        return Tracked(self.expr + amount, self.value + amount) if amount else self


@dataclass(frozen=True, slots=True)
class _End:
    end: Tracked
    literal: Literal | None
    present: bool


class ScheduleModel:
    """Builds the model in one pass over the steps."""

    def __init__(self, problem: Problem, hint: Assignment, *, with_times: bool = True) -> None:
        self.problem = problem
        self.hint = hint
        self.model = cp_model.CpModel()
        self._with_times = with_times
        self._horizon = 1 + sum(
            step.duration + step.issue + step.lead for step in problem.steps if isinstance(step, Activity)
        )
        self._literals = [
            self._one_value_per_decision(decision, size) for decision, size in enumerate(problem.num_values)
        ]
        self._conjunctions: dict[Condition, Literal] = {}
        self._clocks = [Tracked(0, 0)] * problem.num_chains
        self._issuer = Tracked(0, 0)
        self._ends: dict[int, _End] = {}
        self._pools = [_Pool(self, pool) for pool in range(problem.num_pools)]
        self._bounds = StaticBounds(problem)
        self._build()

    def literal(self, decision: int, value: int) -> Literal:
        """Variable of one decision's value."""
        return self._literals[decision][value]

    def _one_value_per_decision(self, decision: int, size: int) -> list[Literal]:
        """Sum over v of l(decision, v) = 1; two values share one Boolean and its negation."""
        chosen = self.hint[decision]
        if size == 2:
            literal = self.model.new_bool_var(f"d{decision}")
            self.model.add_hint(literal, chosen == 1)
            return [cast(Literal, literal.negated()), literal]
        literals = [self.model.new_bool_var(f"d{decision}={value}") for value in range(size)]
        for value, literal in enumerate(literals):
            self.model.add_hint(literal, chosen == value)
        self.model.add_exactly_one(literals)
        return literals

    def condition(self, when: Condition) -> tuple[Literal | None, bool]:
        """Literal of a condition (None: always holds) and whether the hint satisfies it.

        l(a and b) <=> l(a) and l(b).
        """
        if not when:
            return None, True
        holds = all(self.hint[decision] == value for decision, value in when)
        if len(when) == 1:
            return self.literal(*when[0]), holds
        if when not in self._conjunctions:
            parts = [self.literal(*part) for part in when]
            both = self.model.new_bool_var("and")
            self.model.add_hint(both, holds)
            self.model.add_bool_and(parts).only_enforce_if(both)
            self.model.add_bool_or([both, *(~part for part in parts)])
            self._conjunctions[when] = both
        return self._conjunctions[when], holds

    def _build(self) -> None:
        for number, step in enumerate(self.problem.steps):
            match step:
                case Activity():
                    if self._with_times:
                        self._activity(number, step)
                case Barrier():
                    if self._with_times:
                        self._barrier(step)
                case Change():
                    self._pools[step.pool].change(step)
                case Touch():
                    self._pools[step.pool].touch(step)
        for pool in self._pools:
            pool.flush()
        if self._with_times:
            self._competing_paths()
        self._memory_within_budget()

    def _activity(self, number: int, step: Activity) -> None:
        """An activity follows its chains, its waits and the issuer.

        e >= T_c + d                     for its chains c
        e >= e_w + d                     for its waits w, if w is present
        e >= I + lead + d,   e >= I + issue
        T'_c >= e  if l,     T'_c >= T_c + d l,     I' = I + issue l
        """
        literal, present = self.condition(step.when)
        waits = [self._ends[wait] for wait in step.waits if wait in self._ends]
        after = [self._clocks[chain] for chain in step.chains]
        bound_by_issuer = not self._bounds.issuer_is_ahead(number)
        start = max([t.value for t in after] + [w.end.value for w in waits if w.present])
        if bound_by_issuer:
            start = max(start, self._issuer.value + step.lead)
        end_value = start + step.duration
        if bound_by_issuer:
            end_value = max(end_value, self._issuer.value + step.issue)
        if literal is None and len(after) == 1 and not waits and not bound_by_issuer:
            end = after[0].plus(step.duration)
        else:
            end = self._time(end_value)
            for clock in after:
                self.model.add(end.expr >= clock.expr + step.duration)
            for wait in waits:
                row = self.model.add(end.expr >= wait.end.expr + step.duration)
                if wait.literal is not None:
                    row.only_enforce_if(wait.literal)
            if bound_by_issuer:
                self.model.add(end.expr >= self._issuer.expr + (step.lead + step.duration))
                if step.issue > step.lead + step.duration:
                    self.model.add(end.expr >= self._issuer.expr + step.issue)
        self._ends[number] = _End(end, literal, present)
        for chain in step.chains:
            self._clocks[chain] = self._advance(self._clocks[chain], end, step.duration, literal, present)
        self._issue(step.issue, literal, present)
        if step.blocks_issuer:
            self._block_issuer(end, literal, present)

    def _block_issuer(self, end: Tracked, literal: Literal | None, present: bool) -> None:
        """I' >= I, and I' >= e if l."""
        later = self._time(max(self._issuer.value, end.value if present else 0))
        self.model.add(later.expr >= self._issuer.expr)
        row = self.model.add(later.expr >= end.expr)
        if literal is not None:
            row.only_enforce_if(literal)
        self._issuer = later

    def _advance(
        self, clock: Tracked, end: Tracked, duration: int, literal: Literal | None, present: bool
    ) -> Tracked:
        if literal is None:
            return end
        later = self._time(max(clock.value + duration * present, end.value if present else 0))
        self.model.add(later.expr >= clock.expr + duration * literal)
        self.model.add(later.expr >= end.expr).only_enforce_if(literal)
        return later

    def _issue(self, issue: int, literal: Literal | None, present: bool) -> None:
        if not issue:
            return
        if literal is None:
            self._issuer = self._issuer.plus(issue)
            return
        later = self._time(self._issuer.value + issue * present)
        self.model.add(later.expr == self._issuer.expr + issue * literal)
        self._issuer = later

    def _barrier(self, step: Barrier) -> None:
        """T'_c >= T_c, and T'_c >= e_a if the barrier and its activity `a` are present."""
        if step.activity not in self._ends:
            return
        activity = self._ends[step.activity]
        literal, present = self.condition(step.when)
        clock = self._clocks[step.chain]
        passed = present and activity.present
        later = self._time(max(clock.value, activity.end.value if passed else 0))
        self.model.add(later.expr >= clock.expr)
        row = self.model.add(later.expr >= activity.end.expr)
        enforcing = [item for item in (literal, activity.literal) if item is not None]
        if enforcing:
            row.only_enforce_if(*enforcing)
        self._clocks[step.chain] = later

    def _competing_paths(self) -> None:
        """e_x >= e_a + g(l), see `solver.schedule.cuts`."""
        for cut in path_cuts(self.problem):
            expr = self._ends[cut.earlier].end.expr + cut.length
            for when, extra in cut.terms:
                literal, _ = self.condition(when)
                assert literal is not None
                expr = expr + extra * literal
            self.model.add(self._ends[cut.later].end.expr >= expr)

    def _time(self, value: int) -> Tracked:
        variable = self.model.new_int_var(0, self._horizon, "t")
        self.model.add_hint(variable, value)
        return Tracked(variable, value)

    def _memory_within_budget(self) -> None:
        """Sum over p of K_p <= budget."""
        if self.problem.budget is not None:
            self.model.add(sum(pool.peak for pool in self._pools) <= self.problem.budget)

    def minimize_makespan(self, cutoff: int | None) -> None:
        """Min M with M >= T_final and M >= I; `cutoff` asks for M <= cutoff."""
        final = self._clocks[self.problem.final_chain]
        upper = self._horizon if cutoff is None else min(cutoff, self._horizon)
        makespan = self.model.new_int_var(0, upper, "makespan")
        self.model.add_hint(makespan, max(final.value, self._issuer.value))
        self.model.add(makespan >= final.expr)
        self.model.add(makespan >= self._issuer.expr)
        self.model.minimize(makespan)

    def minimize_memory(self) -> None:
        """Min over all assignments of the sum of the pool peaks."""
        self.model.minimize(sum(pool.peak for pool in self._pools))


class _Pool:
    """Level and peak of one pool.

    L' = L + sum of changes under their literals
    K >= L + sum over v of touch_v l_v      where the v are the values of one decision (exactly one holds)
    """

    def __init__(self, owner: ScheduleModel, pool: int) -> None:
        self._owner = owner
        self._steps_upper = sum(
            abs(step.amount)
            for step in owner.problem.steps
            if isinstance(step, Change | Touch) and step.pool == pool
        )
        self.peak = owner.model.new_int_var(0, self._steps_upper, f"K{pool}")
        self._peak_value = 0
        self._level = Tracked(0, 0)
        self._terms: dict[Condition, int] = {}
        self._touches: dict[Condition, int] = {}
        self._risen = False

    def change(self, step: Change) -> None:
        """A change; the rows of the level before it are written when it can fall."""
        if self._touches or (step.amount < 0 and self._risen):
            self._write_rows()
        self._terms[step.when] = self._terms.get(step.when, 0) + step.amount
        self._risen = self._risen or step.amount > 0

    def touch(self, step: Touch) -> None:
        """A momentary rise over the present level."""
        self._touches[step.when] = max(step.amount, self._touches.get(step.when, 0))
        self._risen = False

    def flush(self) -> None:
        """Write the last rows and hint the peak."""
        self._write_rows()
        self._owner.model.add_hint(self.peak, self._peak_value)

    def _write_rows(self) -> None:
        self._settle()
        rows: dict[int | None, list[tuple[Condition, int]]] = {}
        for when, amount in self._touches.items():
            key = when[0][0] if len(when) == 1 else None if not when else -1 - len(rows)
            rows.setdefault(key, []).append((when, amount))
        if not self._touches:
            rows[None] = [((), 0)]
        for touches in rows.values():
            self._row(touches)
        self._touches = {}
        self._risen = False

    def _row(self, touches: list[tuple[Condition, int]]) -> None:
        expr, value = self._level.expr, self._level.value
        for when, amount in touches:
            literal, present = self._owner.condition(when)
            expr = expr + (amount if literal is None else amount * literal)
            value += amount * present
        self._owner.model.add(self.peak >= expr)
        self._peak_value = max(self._peak_value, value)

    def _settle(self) -> None:
        """Fold the pending changes into the level; a new variable keeps the rows short."""
        expr, value = self._level.expr, self._level.value
        conditional = 0
        for when, amount in self._terms.items():
            if not amount:
                continue
            literal, present = self._owner.condition(when)
            conditional += literal is not None
            expr = expr + (amount if literal is None else amount * literal)
            value += amount * present
        self._terms = {}
        if conditional:
            level = self._owner.model.new_int_var(0, self._steps_upper, "L")
            self._owner.model.add_hint(level, value)
            self._owner.model.add(level == expr)
            expr = level
        self._level = Tracked(expr, value)
