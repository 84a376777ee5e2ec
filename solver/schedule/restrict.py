"""Problems made from problems: some decisions taken, or the times of one with the memory of another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from solver.schedule.problem import ANY, Activity, Barrier, Condition, Problem, Step, Stop


def restrict(problem: Problem, fixed: Mapping[int, int]) -> Problem:
    """Drop the steps that the fixed values rule out; decisions keep their numbers, fixed ones no longer matter."""
    reserves = [(reserve, _remaining(reserve.when, fixed)) for reserve in problem.reserves]
    return replace(
        problem,
        rounds=tuple(replace(one, steps=_restricted(one.steps, fixed)) for one in problem.rounds),
        reserves=tuple(replace(reserve, when=when) for reserve, when in reserves if when is not None),
    )


def combine(times: Problem, memory: Problem) -> Problem:
    """The activities of one problem with the memory of another; rounds and decisions are alike in both."""
    return replace(
        times,
        rounds=tuple(
            replace(
                one,
                steps=(
                    *_renumbered([(n, s) for n, s in enumerate(one.steps) if isinstance(s, _TIMED)]),
                    *(step for step in other.steps if not isinstance(step, _TIMED)),
                ),
            )
            for one, other in zip(times.rounds, memory.rounds, strict=True)
        ),
    )


_TIMED = (Activity, Barrier, Stop)


def _restricted(steps: tuple[Step, ...], fixed: Mapping[int, int]) -> tuple[Step, ...]:
    left = [(number, step, _remaining(step.when, fixed)) for number, step in enumerate(steps)]
    return _renumbered([(number, replace(step, when=when)) for number, step, when in left if when is not None])


def _renumbered(steps: Sequence[tuple[int, Step]]) -> tuple[Step, ...]:
    """Steps that are left of a round, by their old numbers; what refers to others is dropped."""
    left: list[Step] = []
    numbers: dict[int, int] = {}
    for number, step in steps:
        if isinstance(step, Barrier | Stop):
            if step.activity not in numbers:
                continue
            step = replace(step, activity=numbers[step.activity])
        elif isinstance(step, Activity):
            step = replace(step, waits=tuple(numbers[wait] for wait in step.waits if wait in numbers))
        numbers[number] = len(left)
        left.append(step)
    return tuple(left)


def _remaining(when: Condition, fixed: Mapping[int, int]) -> Condition | None:
    """What is left of a condition; None when a fixed value contradicts it."""
    if when[:1] == (ANY,):
        if any(fixed.get(decision) == value for decision, value in when[1:]):
            return ()
        left = tuple(literal for literal in when[1:] if literal[0] not in fixed)
        return (ANY, *left) if len(left) > 1 else left or None
    if any(decision in fixed and fixed[decision] != value for decision, value in when):
        return None
    return tuple(literal for literal in when if literal[0] not in fixed)
