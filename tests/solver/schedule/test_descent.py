"""Local search: two changes at once, and back within the budget."""

from solver.schedule.descent import descend
from solver.schedule.evaluate import Evaluator
from solver.schedule.problem import Activity, Assignment, Change, Evaluation, Family, Problem, Round


def problem(savings: tuple[int, ...], sizes: tuple[int, ...], budget: int) -> Problem:
    """Each decision's value 1 spares an activity and takes memory for it."""
    steps = [Activity(chains=(0,), duration=saving, when=((place, 0),)) for place, saving in enumerate(savings)]
    changes = [Change(pool=0, amount=size, when=((place, 1),)) for place, size in enumerate(sizes)]
    return Problem(
        num_values=(2,) * len(savings),
        families=(Family(name="all", decisions=tuple(range(len(savings)))),),
        rounds=(Round(steps=(*steps, *changes)),),
        num_chains=1,
        num_pools=1,
        final_chain=0,
        budget=budget,
    )


def found(one: Problem, start: Assignment, *, taken: tuple[int, ...] = ()) -> Evaluation:
    """The best that is seen on the way."""
    evaluator, seen = Evaluator(one), list[Evaluation]()

    def evaluate(assignment: Assignment) -> Evaluation:
        seen.append(evaluator.evaluate(assignment))
        assert all(assignment[decision] == start[decision] for decision in taken)
        return seen[-1]

    descend(one, start, evaluate, max_changes=100, taken=taken)
    return min(filter(one.is_feasible, seen), key=one.value)


def test_one_leaves_for_another() -> None:
    """The budget has room for one of two, and no single change helps."""
    one = problem((5, 9), (10, 10), 10)
    assert found(one, (1, 0)).makespan == 5
    assert found(one, (1, 0), taken=(0,)).makespan == 9


def test_the_cheapest_leave_where_the_budget_is_exceeded() -> None:
    """Of 3 x 10 bytes 10 must go: those that save 1."""
    one = problem((7, 1, 8), (10, 10, 10), 20)
    assert found(one, (1, 1, 1)).makespan == 1


def test_many_leave_at_once() -> None:
    """Of 12 x 10 bytes all but two must go, more than a pair of changes frees."""
    one = problem(tuple(range(1, 13)), (10,) * 12, 20)
    assert found(one, (1,) * 12).makespan == sum(range(1, 11))
