"""Redundant constraints that make the relaxation strong where paths compete.

Take an activity x and the activity a before it on one of its chains. Without any optional activity the longest path from a
to x has length p. Under a condition c it has length q > p. Then

    e_x >= e_a + p + (q - p) l(c)

holds for every assignment. The plain precedences imply it only for integers: their relaxation lets a share of an optional
activity slip into the gap that a longer unconditional path leaves open.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from solver.schedule.problem import Activity, Barrier, Condition, Problem, Step

_NEVER = -(2**62)
MAX_WINDOW = 200
"""Steps between the two activities beyond which no cut is sought."""


@dataclass(frozen=True, slots=True)
class Cut:
    """`e_later >= e_earlier + length + extra * l(when)`; step numbers of unconditional activities."""

    earlier: int
    later: int
    length: int
    extra: int
    when: Condition


def window_cuts(problem: Problem) -> Iterator[Cut]:
    """All cuts between neighbours on a chain."""
    previous: dict[int, int] = {}
    for number, step in enumerate(problem.steps):
        if not isinstance(step, Activity) or step.when:
            continue
        for earlier in sorted({previous[chain] for chain in step.chains if chain in previous}):
            if number - earlier <= MAX_WINDOW:
                yield from _cuts_between(problem, earlier, number)
        previous.update(dict.fromkeys(step.chains, number))


def _cuts_between(problem: Problem, earlier: int, later: int) -> Iterator[Cut]:
    window = list(enumerate(problem.steps[earlier : later + 1], start=earlier))
    timed = [(number, step) for number, step in window if isinstance(step, Activity | Barrier)]
    conditions = {step.when for _, step in timed if step.when}
    if not conditions:
        return
    length = _longest(timed, ())
    for when in sorted(conditions):
        extra = _longest(timed, when) - length
        if extra > 0:
            yield Cut(earlier, later, length, extra, when)


def _longest(timed: list[tuple[int, Step]], when: Condition) -> int:
    """Longest path from the first activity's end to the last one's end, with the steps that `when` implies."""
    holds = set(when)
    (first, origin), *rest = timed
    assert isinstance(origin, Activity)
    chains = dict.fromkeys(origin.chains, 0)
    ends = {first: 0}
    for number, step in rest:
        if not holds.issuperset(step.when):
            continue
        if isinstance(step, Barrier):
            chains[step.chain] = max(chains.get(step.chain, _NEVER), ends.get(step.activity, _NEVER))
        elif isinstance(step, Activity):
            start = max(
                [chains.get(chain, _NEVER) for chain in step.chains]
                + [ends.get(wait, _NEVER) for wait in step.waits]
            )
            ends[number] = start + step.duration if start > _NEVER else _NEVER
            for chain in step.chains:
                chains[chain] = max(chains.get(chain, _NEVER), ends[number])
    return ends[rest[-1][0]]
