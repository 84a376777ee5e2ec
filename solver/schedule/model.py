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
from solver.schedule.problem import (
    ANY,
    Activity,
    Aim,
    Assignment,
    Barrier,
    Change,
    Condition,
    Problem,
    Round,
    Stop,
    Touch,
    holds,
)

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
    """Builds the model in one pass over the steps of each round."""

    def __init__(self, problem: Problem, hint: Assignment) -> None:
        self.problem = problem
        self.hint = hint
        self.model = cp_model.CpModel()
        self._with_times = problem.aim is Aim.MAKESPAN or problem.deadline is not None
        self._horizon = 1 + sum(
            step.duration + step.issue + step.lead
            for one in problem.rounds
            for step in one.steps
            if isinstance(step, Activity)
        )
        self._literals = [
            self._one_value_per_decision(decision, size) for decision, size in enumerate(problem.num_values)
        ]
        self._joint: dict[Condition, Literal] = {}
        self._peaks = [_Peak(self, pool) for pool in range(problem.num_pools)]
        self._makespans: list[tuple[int, Tracked]] = []
        for one in problem.rounds:
            self._build(one)
        for peak in self._peaks:
            peak.add_hint()
        self._memory_within_budget()

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

        l(a and b) <=> l(a) and l(b), l(a or b) <=> l(a) or l(b).
        """
        if not when:
            return None, True
        present = holds(when, self.hint)
        if len(when) == 1:
            return self.literal(*when[0]), present
        if when not in self._joint:
            is_any = when[0] == ANY
            parts = [self.literal(*part) for part in when[is_any:]]
            joint = self.model.new_bool_var("any" if is_any else "all")
            self.model.add_hint(joint, present)
            if is_any:
                self.model.add_bool_or(parts).only_enforce_if(joint)
                self.model.add_bool_and([~part for part in parts]).only_enforce_if(~joint)
            else:
                self.model.add_bool_and(parts).only_enforce_if(joint)
                self.model.add_bool_or([joint, *(~part for part in parts)])
            self._joint[when] = joint
        return self._joint[when], present

    def _build(self, one: Round) -> None:
        self._clocks = [Tracked(0, 0)] * self.problem.num_chains
        self._issuer = Tracked(0, 0)
        self._ends: dict[int, _End] = {}
        self._bounds = StaticBounds(one.steps, self.problem.final_chain)
        pools = [_Pool(self, peak) for peak in self._peaks]
        for number, step in enumerate(one.steps):
            match step:
                case Change():
                    pools[step.pool].change(step)
                case Touch():
                    pools[step.pool].touch(step)
                case _ if not self._with_times:
                    pass
                case Activity():
                    self._activity(number, step)
                case Barrier():
                    self._barrier(step)
                case Stop():
                    self._stop(step)
        for pool in pools:
            pool.flush()
        if self._with_times:
            self._competing_paths(one)
            self._makespans.append((one.count, self._makespan()))

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

    def _stop(self, step: Stop) -> None:
        """I' >= I, and I' >= e_a if the stop and its activity `a` are present."""
        if step.activity in self._ends:
            self._issuer = self._after(self._issuer, self._ends[step.activity], step.when)

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
        if step.activity in self._ends:
            self._clocks[step.chain] = self._after(self._clocks[step.chain], self._ends[step.activity], step.when)

    def _after(self, clock: Tracked, activity: _End, when: Condition) -> Tracked:
        """The clock once it has waited for an activity."""
        literal, present = self.condition(when)
        later = self._time(max(clock.value, activity.end.value if present and activity.present else 0))
        self.model.add(later.expr >= clock.expr)
        row = self.model.add(later.expr >= activity.end.expr)
        enforcing = [item for item in (literal, activity.literal) if item is not None]
        if enforcing:
            row.only_enforce_if(*enforcing)
        return later

    def _competing_paths(self, one: Round) -> None:
        """e_x >= e_a + g(l), see `solver.schedule.cuts`."""
        for cut in path_cuts(one.steps):
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

    def _makespan(self) -> Tracked:
        """M >= T_final and M >= I, of one run of the round."""
        final = self._clocks[self.problem.final_chain]
        makespan = self._time(max(final.value, self._issuer.value))
        self.model.add(makespan.expr >= final.expr)
        self.model.add(makespan.expr >= self._issuer.expr)
        return makespan

    def _memory_within_budget(self) -> None:
        """Sum over p of K_p, and reserves under their literals, <= budget."""
        if self.problem.budget is not None:
            self.model.add(self._needed() <= self.problem.budget)

    def _needed(self) -> Expr:
        needed: Expr = sum(peak.variable for peak in self._peaks)
        for reserve in self.problem.reserves:
            literal, _ = self.condition(reserve.when)
            needed = needed + (reserve.amount if literal is None else reserve.amount * literal)
        return needed

    def _total(self) -> Tracked:
        """Sum over the rounds of count times M."""
        terms = self._makespans
        return Tracked(sum(n * makespan.expr for n, makespan in terms), sum(n * m.value for n, m in terms))

    def _goal(self) -> Expr:
        match self.problem.aim:
            case Aim.MAKESPAN:
                return self._total().expr
            case Aim.MEMORY:
                return self._needed()
            case Aim.PEAK:
                return sum(peak.variable for peak in self._peaks)

    def minimize(self, cutoff: int | None = None) -> None:
        """Min of what the problem aims at; `cutoff` asks for a value of at most that. Total <= deadline."""
        if self.problem.deadline is not None:
            self.model.add(self._total().expr <= self.problem.deadline)
        goal = self._goal()
        if cutoff is not None:
            self.model.add(goal <= cutoff)
        self.model.minimize(goal)


class _Peak:
    """K_p: the most of a pool in any round."""

    def __init__(self, owner: ScheduleModel, pool: int) -> None:
        self.owner = owner
        self.upper = sum(
            abs(step.amount)
            for one in owner.problem.rounds
            for step in one.steps
            if isinstance(step, Change | Touch) and step.pool == pool
        )
        self.variable = owner.model.new_int_var(0, self.upper, f"K{pool}")
        self._value = 0

    def at_least(self, level: Tracked) -> None:
        """K_p >= level."""
        self.owner.model.add(self.variable >= level.expr)
        self._value = max(self._value, level.value)

    def add_hint(self) -> None:
        """Once all levels are known."""
        self.owner.model.add_hint(self.variable, self._value)


class _Pool:
    """Level of one pool in one round.

    L' = L + sum of changes under their literals
    K >= L + sum over v of touch_v l_v      where the v are the values of one decision (exactly one holds)
    """

    def __init__(self, owner: ScheduleModel, peak: _Peak) -> None:
        self._owner = owner
        self._peak = peak
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
        """Write the last rows."""
        self._write_rows()

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
        self._peak.at_least(Tracked(expr, value))

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
            level = self._owner.model.new_int_var(0, self._peak.upper, "L")
            self._owner.model.add_hint(level, value)
            self._owner.model.add(level == expr)
            expr = level
        self._level = Tracked(expr, value)
