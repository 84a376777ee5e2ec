"""Random small scheduling problems with every kind of step, and brute force over their assignments."""

import random
from dataclasses import replace
from itertools import product

from solver.schedule.problem import (
    ANY,
    Activity,
    Barrier,
    Change,
    Condition,
    Evaluation,
    Family,
    Problem,
    Reserve,
    Round,
    Step,
    Stop,
    Touch,
    holds,
)

_NUM_CHAINS, _NUM_POOLS = 3, 2


def random_problem(seed: int, *, num_decisions: int = 4, num_steps: int = 24) -> Problem:
    """A problem with a budget near the middle of what its assignments need."""
    rng = random.Random(seed)
    num_values = tuple(rng.choice((2, 2, 3)) for _ in range(num_decisions))
    num_rounds = rng.choice((1, 1, 2))
    problem = Problem(
        num_values=num_values,
        families=(Family(name="all", decisions=tuple(range(num_decisions))),),
        rounds=tuple(
            Round(steps=tuple(_steps(rng, num_values, num_steps // num_rounds)), count=rng.choice((1, 1, 3)))
            for _ in range(num_rounds)
        ),
        num_chains=_NUM_CHAINS,
        num_pools=_NUM_POOLS,
        final_chain=0,
        budget=None,
        reserves=tuple(Reserve(amount=rng.randint(1, 9), when=_condition(rng, num_values)) for _ in range(2)),
    )
    return problem if seed % 4 == 0 else _with_budget(problem, rng)


def _steps(rng: random.Random, num_values: tuple[int, ...], num_steps: int) -> list[Step]:
    steps: list[Step] = []
    activities: list[int] = []
    for _ in range(num_steps):
        when = _condition(rng, num_values)
        kind = rng.random()
        if kind < 0.5:
            chains = tuple(sorted(rng.sample(range(_NUM_CHAINS), rng.choice((1, 1, 1, 2)))))
            waits = tuple(sorted(rng.sample(activities, min(len(activities), rng.randint(0, 2)))))
            issue = rng.choice((0, 0, 1, 3))
            duration, lead = rng.randint(0, 20), min(issue, 1)
            activity = Activity(chains=chains, duration=duration, lead=lead, issue=issue, waits=waits, when=when)
            activities.append(len(steps))
            steps.append(activity)
        elif kind < 0.6 and activities:
            steps.append(Barrier(chain=rng.randrange(_NUM_CHAINS), activity=rng.choice(activities), when=when))
        elif kind < 0.65 and activities:
            steps.append(Stop(activity=rng.choice(activities), when=when))
        elif kind < 0.8:
            amount, pool = rng.randint(1, 30), rng.randrange(_NUM_POOLS)
            steps.append(Change(pool=pool, amount=amount, when=when))
            if rng.random() < 0.6:
                steps.append(Change(pool=pool, amount=-amount, when=when))
        else:
            steps.append(Touch(pool=rng.randrange(_NUM_POOLS), amount=rng.randint(1, 40), when=when))
    return steps


def assignments(problem: Problem) -> list[tuple[int, ...]]:
    """Every assignment."""
    return list(product(*(range(size) for size in problem.num_values)))


def reference(problem: Problem, assignment: tuple[int, ...]) -> Evaluation:
    """Longest paths and running sums, written the slow and obvious way."""
    return Evaluation(
        makespan=sum(one.count * _makespan(problem, one, assignment) for one in problem.rounds),
        pool_peaks=tuple(
            max(_peak(one, pool, assignment) for one in problem.rounds) for pool in range(problem.num_pools)
        ),
        reserved=sum(one.amount for one in problem.reserves if holds(one.when, assignment)),
    )


def _makespan(problem: Problem, one: Round, assignment: tuple[int, ...]) -> int:
    present = {number: step for number, step in enumerate(one.steps) if holds(step.when, assignment)}
    ends: dict[int, int] = {}

    def chain_clock(chain: int, before: int) -> int:
        clock = 0
        for number, step in present.items():
            if number >= before:
                break
            if isinstance(step, Activity) and chain in step.chains:
                clock = max(clock, ends[number])
            if isinstance(step, Barrier) and step.chain == chain:
                clock = max(clock, ends.get(step.activity, 0))
        return clock

    issued = 0
    for number, step in present.items():
        if isinstance(step, Activity):
            begin = max(
                [issued + step.lead]
                + [chain_clock(chain, number) for chain in step.chains]
                + [ends.get(wait, 0) for wait in step.waits]
            )
            issued += step.issue
            ends[number] = max(begin + step.duration, issued)
        if isinstance(step, Stop):
            issued = max(issued, ends.get(step.activity, 0))
    return max(chain_clock(problem.final_chain, len(one.steps)), issued)


def _peak(one: Round, pool: int, assignment: tuple[int, ...]) -> int:
    level = peak = 0
    for step in one.steps:
        if isinstance(step, Change | Touch) and step.pool == pool and holds(step.when, assignment):
            peak = max(peak, level + step.amount)
            level += step.amount if isinstance(step, Change) else 0
    return peak


def _condition(rng: random.Random, num_values: tuple[int, ...]) -> Condition:
    size = rng.choice((0, 0, 1, 1, 2))
    chosen = sorted(rng.sample(range(len(num_values)), size))
    literals = tuple((decision, rng.randrange(num_values[decision])) for decision in chosen)
    return (ANY, *literals) if size > 1 and rng.random() < 0.3 else literals


def _with_budget(problem: Problem, rng: random.Random) -> Problem:
    needed = sorted(reference(problem, assignment).needed for assignment in assignments(problem))
    budget = needed[rng.randrange(len(needed))] - rng.choice((0, 0, 0, needed[0] + 1))
    return replace(problem, budget=max(0, budget))
