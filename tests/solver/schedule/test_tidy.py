"""Tidying keeps assignments possible, and makes them regular where that costs no more than the slack."""

from solver.schedule.problem import Activity, Assignment, Family, Problem, Round
from solver.schedule.tidy import disorder, tidy


def problem(num_values: tuple[int, ...], *, costly: dict[int, int]) -> Problem:
    """One family; each decision's value 1 saves its nanoseconds."""
    steps = tuple(
        Activity(chains=(0,), duration=nanoseconds, when=((decision, 0),))
        for decision, nanoseconds in costly.items()
    )
    return Problem(
        num_values=num_values,
        families=(Family(name="activation", decisions=tuple(range(len(num_values)))),),
        rounds=(Round(steps=steps, count=1),),
        num_chains=1,
        num_pools=1,
        final_chain=0,
        budget=None,
    )


def is_possible(asked: Problem, assignment: Assignment) -> bool:
    return all(value < size for value, size in zip(assignment, asked.num_values, strict=True))


def test_values_are_not_moved_to_decisions_that_lack_them() -> None:
    """Value 2 exists for the middle one alone; a pattern over all three would give it to the first or the last."""
    asked = problem((2, 3, 2), costly={0: 5, 2: 5})
    found = tidy(asked, (1, 2, 1), slack=0)
    assert is_possible(asked, found)
    assert found == (1, 0, 1)


def test_what_costs_no_more_than_the_slack_becomes_regular() -> None:
    asked = problem((2, 2, 2, 2), costly={0: 10, 1: 10, 2: 10, 3: 10})
    assert disorder(asked, (1, 0, 1, 0)) > disorder(asked, (1, 1, 0, 0))
    assert disorder(asked, tidy(asked, (1, 0, 1, 0), slack=0)) == disorder(asked, (1, 1, 0, 0))
    assert tidy(asked, (1, 0, 1, 0), slack=20) == (0, 0, 0, 0)
