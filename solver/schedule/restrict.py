"""The same problem with some decisions taken."""

from collections.abc import Mapping
from dataclasses import replace

from solver.schedule.problem import Activity, Barrier, Condition, Problem, Step


def restrict(problem: Problem, fixed: Mapping[int, int]) -> Problem:
    """Drop the steps that the fixed values rule out; decisions keep their numbers, fixed ones no longer matter."""
    steps: list[Step] = []
    numbers: dict[int, int] = {}
    for number, step in enumerate(problem.steps):
        when = _remaining(step.when, fixed)
        if when is None:
            continue
        if isinstance(step, Barrier):
            if step.activity not in numbers:
                continue
            step = replace(step, activity=numbers[step.activity])
        elif isinstance(step, Activity):
            step = replace(step, waits=tuple(numbers[wait] for wait in step.waits if wait in numbers))
        numbers[number] = len(steps)
        steps.append(replace(step, when=when))
    return replace(problem, steps=tuple(steps))


def _remaining(when: Condition, fixed: Mapping[int, int]) -> Condition | None:
    """What is left of a condition; None when a fixed value contradicts it."""
    if any(decision in fixed and fixed[decision] != value for decision, value in when):
        return None
    return tuple(literal for literal in when if literal[0] not in fixed)
