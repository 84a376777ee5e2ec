"""The search against every order, every place and every shard size (`make verify-layout` does thousands)."""

import pytest

from benchmarks.verify_layout import differences, random_problem, smallest_shard
from solver.layout.bounds import ShardSizes
from solver.layout.problem import LayoutProblem, Tensor


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_problems(first: int) -> None:
    for seed in range(first, first + 20):
        assert list(differences(seed)) == [], seed


def test_no_bound_excludes_a_shard_size_that_works() -> None:
    """Of each problem every shard size up to where all lies on one rank."""
    num_excluded = num_open = 0
    for seed in range(1000, 1150):
        problem = random_problem(seed)
        sizes = ShardSizes(problem)
        for shard in range(problem.alignment_elements, problem.num_elements + 1, problem.alignment_elements):
            if sizes.next_open(shard) == shard:
                num_open += 1
                continue
            num_excluded += 1
            aligned_to_it = LayoutProblem(
                tensors=problem.tensors,
                num_ranks=problem.num_ranks,
                alignment_elements=shard,
                shares=problem.shares,
            )
            assert smallest_shard(aligned_to_it) != shard, (seed, shard)
    assert num_excluded > 1000
    assert num_open > 1000


def test_the_exhaustive_search_on_a_problem_solved_by_hand() -> None:
    """Atoms 4 4 4 and 3 3 on two ranks: 9 = 4 + 4 + one of padding | 4 + 3 + 3 needs 10; 3 3 4 | 4 4 too."""
    tensors = (
        Tensor(name="a", num_elements=12, atom_elements=4),
        Tensor(name="b", num_elements=6, atom_elements=3),
    )
    assert smallest_shard(LayoutProblem(tensors=tensors, num_ranks=2)) == 10
