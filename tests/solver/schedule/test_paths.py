"""Longest paths bound every makespan, and go from chain to chain."""

import pytest

from solver.schedule.paths import LongestPaths
from solver.schedule.problem import Activity, Round, Stop
from solver.schedule.rows import Row, TimeRows
from tests.solver.schedule.random_problems import assignments, random_problem, reference


@pytest.mark.parametrize("seed", range(60))
def test_no_makespan_is_below_any_longest_path(seed: int) -> None:
    problem = random_problem(5000 + seed)
    every = list(assignments(problem))
    paths = [LongestPaths(one, problem.final_chain, problem.num_chains) for one in problem.rounds]
    for here in every:
        rows = [(one.count, Row.of(0, path.longest(here))) for one, path in zip(problem.rounds, paths, strict=True)]
        for there in every:
            least = sum(count * max(0, row.value(there)) for count, row in rows)
            assert least <= reference(problem, there).makespan, (here, there)


def test_a_path_goes_from_chain_to_chain_past_what_is_optional() -> None:
    """Chains 0, 1, 0 in turn, with something optional on each: no window of one chain has both of these."""
    optional = ((0, 1),)
    one = Round(
        steps=(
            Activity(chains=(0,), duration=10, when=optional),
            Activity(chains=(0,), duration=10),
            Activity(chains=(1,), duration=10, waits=(1,)),
            Activity(chains=(1,), duration=10, when=optional),
            Activity(chains=(1,), duration=10),
            Stop(activity=4),
            Activity(chains=(0,), duration=10),
        )
    )
    row = Row.of(0, LongestPaths(one, 0, 2).longest((1,)))
    assert row == Row(40, (((0, 1), 20),))
    assert max(found.value((1,)) for found in TimeRows(one, 0, 2).best((1,))) < 60


def test_a_path_goes_from_the_issuer_to_what_is_optional_and_counts_every_value() -> None:
    """The issuer waits for a copy, then computation recomputes for 5 or 3 ns or not at all, whatever is decided."""
    more, less = ((0, 1),), ((0, 2),)
    one = Round(
        steps=(
            Activity(chains=(0,), duration=10),
            Activity(chains=(1,), duration=20, waits=(0,)),
            Stop(activity=1),
            Activity(chains=(0,), duration=5, when=more),
            Activity(chains=(0,), duration=3, when=less),
            Activity(chains=(0,), duration=10),
        )
    )
    for value in range(3):
        assert Row.of(0, LongestPaths(one, 0, 2).longest((value,))) == Row(40, (((0, 1), 5), ((0, 2), 3)))
