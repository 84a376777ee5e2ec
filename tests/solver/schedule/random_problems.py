"""Random small scheduling problems with every kind of step, and brute force over their assignments."""

import random
from itertools import product

from solver.schedule.problem import Activity, Barrier, Change, Condition, Evaluation, Family, Problem, Step, Touch


def random_problem(seed: int, *, num_decisions: int = 4, num_steps: int = 24) -> Problem:
    """A problem with a budget near the middle of what its assignments need."""
    rng = random.Random(seed)
    num_values = tuple(rng.choice((2, 2, 3)) for _ in range(num_decisions))
    steps: list[Step] = []
    activities: list[int] = []
    num_chains, num_pools = 3, 2
    for _ in range(num_steps):
        when = _condition(rng, num_values)
        kind = rng.random()
        if kind < 0.5:
            chains = tuple(sorted(rng.sample(range(num_chains), rng.choice((1, 1, 1, 2)))))
            waits = tuple(sorted(rng.sample(activities, min(len(activities), rng.randint(0, 2)))))
            issue = rng.choice((0, 0, 1, 3))
            steps.append(
                Activity(
                    chains=chains,
                    duration=rng.randint(0, 20),
                    lead=min(issue, 1),
                    issue=issue,
                    waits=waits,
                    blocks_issuer=issue > 0 and rng.random() < 0.2,
                    when=when,
                )
            )
            activities.append(len(steps) - 1)
        elif kind < 0.6 and activities:
            steps.append(Barrier(chain=rng.randrange(num_chains), activity=rng.choice(activities), when=when))
        elif kind < 0.8:
            amount, pool = rng.randint(1, 30), rng.randrange(num_pools)
            steps.append(Change(pool=pool, amount=amount, when=when))
            if rng.random() < 0.6:
                steps.append(Change(pool=pool, amount=-amount, when=when))
        else:
            steps.append(Touch(pool=rng.randrange(num_pools), amount=rng.randint(1, 40), when=when))
    problem = Problem(
        num_values=num_values,
        families=(Family(name="all", decisions=tuple(range(num_decisions))),),
        steps=tuple(steps),
        num_chains=num_chains,
        num_pools=num_pools,
        final_chain=0,
        budget=None,
    )
    return problem if seed % 4 == 0 else _with_budget(problem, rng)


def assignments(problem: Problem) -> list[tuple[int, ...]]:
    """Every assignment."""
    return list(product(*(range(size) for size in problem.num_values)))


def reference(problem: Problem, assignment: tuple[int, ...]) -> Evaluation:
    """Longest paths and running sums, written the slow and obvious way."""
    present = {
        number: step
        for number, step in enumerate(problem.steps)
        if all(assignment[decision] == value for decision, value in step.when)
    }
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
            if step.blocks_issuer:
                issued = max(issued, ends[number])
    peaks = []
    for pool in range(problem.num_pools):
        levels = [0]
        peak = 0
        for step in present.values():
            if isinstance(step, Change) and step.pool == pool:
                levels.append(levels[-1] + step.amount)
                peak = max(peak, levels[-1])
            if isinstance(step, Touch) and step.pool == pool:
                peak = max(peak, levels[-1] + step.amount)
        peaks.append(peak)
    makespan = max(chain_clock(problem.final_chain, len(problem.steps)), issued)
    return Evaluation(makespan=makespan, pool_peaks=tuple(peaks))


def _condition(rng: random.Random, num_values: tuple[int, ...]) -> Condition:
    size = rng.choice((0, 0, 1, 1, 2))
    chosen = sorted(rng.sample(range(len(num_values)), size))
    return tuple((decision, rng.randrange(num_values[decision])) for decision in chosen)


def _with_budget(problem: Problem, rng: random.Random) -> Problem:
    peaks = sorted(reference(problem, assignment).peak for assignment in assignments(problem))
    budget = peaks[rng.randrange(len(peaks))] - rng.choice((0, 0, 0, peaks[0] + 1))
    return Problem(
        num_values=problem.num_values,
        families=problem.families,
        steps=problem.steps,
        num_chains=problem.num_chains,
        num_pools=problem.num_pools,
        final_chain=problem.final_chain,
        budget=max(0, budget),
    )
