"""Joint choices: buffers, atoms and degrees."""

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

import pytest

from benchmarks.layout_padding import joint_choices
from solver.layout.flexible import FlexibleTensor, JointLayout, JointProblem, largest_divisor
from solver.layout.grouping import Group, divided, exchanges, grouping, kicked, members_by_buffer, moves
from solver.layout.joint import solve_jointly
from solver.layout.problem import LayoutProblem, Tensor, check, padding_elements
from solver.layout.search import solve


def fixed(*sizes: tuple[int, int]) -> tuple[FlexibleTensor, ...]:
    return tuple(
        FlexibleTensor(name=str(number), num_elements=elements, step_elements=atom)
        for number, (elements, atom) in enumerate(sizes)
    )


def require_sound(problem: JointProblem, found: JointLayout) -> None:
    """Every tensor once, atoms within their ranges, every layout valid."""
    placed = {tensor.name: tensor for buffer in found.buffers for tensor in buffer.problem.tensors}
    assert sum(len(buffer.problem.tensors) for buffer in found.buffers) == len(placed) == len(problem.tensors)
    assert len(found.buffers) <= problem.max_buffers
    assert found.num_ranks in problem.rank_options
    for tensor in problem.tensors:
        steps, rest = divmod(placed[tensor.name].atom_elements, tensor.step_elements)
        assert rest == 0
        assert tensor.least_steps <= steps <= tensor.most_steps
    for buffer in found.buffers:
        assert buffer.problem.num_ranks == found.num_ranks
        assert check(buffer.problem, buffer.layout) == ()


def test_attention_of_two_widths() -> None:
    """31 % and 601 % in one buffer, below 3 % by the joint choice, without fewer ranks."""
    by_rows = {tuple(row["rows"]): row for row in joint_choices()}
    assert round(by_rows[1, 1]["one_buffer_percent"]) == 31
    assert round(by_rows[16, 16]["one_buffer_percent"]) == 601
    assert by_rows[1, 1]["joint_percent"] < 0.01
    assert by_rows[16, 16]["joint_percent"] < 1.51
    assert by_rows[16, 128]["joint_percent"] < 0.6
    assert all(row["ranks"] == 64 for row in by_rows.values())


@pytest.mark.parametrize(
    ("max_buffers", "shards", "padding"), [(1, [24], 100), (2, [6, 10], 36), (3, [1, 5, 6], 4)]
)
def test_widths_part(max_buffers: int, shards: list[int], padding: int) -> None:
    """On eight ranks 8 x 6 alone takes 6 each and 8 x 5 takes 5; together 6 and 5 divide no shard below 24."""
    problem = JointProblem(tensors=fixed((48, 6), (40, 5), (4, 1)), rank_options=(8,), max_buffers=max_buffers)
    found = solve_jointly(problem)
    require_sound(problem, found)
    assert sorted(buffer.layout.shard_elements for buffer in found.buffers) == shards
    assert found.padding_elements == padding


def test_a_buffer_more_must_save_what_it_costs() -> None:
    tensors = fixed((48, 6), (40, 5))
    one = 8 * 24 - 88
    apart = solve_jointly(JointProblem(tensors=tensors, rank_options=(8,), elements_per_buffer=one - 1))
    together = solve_jointly(JointProblem(tensors=tensors, rank_options=(8,), elements_per_buffer=one))
    assert [len(apart.buffers), apart.padding_elements] == [2, 0]
    assert [len(together.buffers), together.padding_elements] == [1, one]


def test_atoms_between_a_least_and_a_most() -> None:
    """45 rows for each of 64 ranks: no doubling of 16 divides 45, 45 itself does."""
    tensor = FlexibleTensor(name="o", num_elements=2880 * 4096, step_elements=4096, least_steps=16, most_steps=128)
    assert 45 * 4096 in tensor.atoms(64)
    found = solve_jointly(JointProblem(tensors=(tensor,), rank_options=(64,)))
    assert found.padding_elements == 0
    assert [t.atom_elements for t in found.buffers[0].problem.tensors] == [45 * 4096]


def test_atoms_are_as_coarse_as_the_cuts_allow() -> None:
    """96 rows on two ranks are cut in the middle: 48, though 4 would do; an uncut tensor gets the most."""
    tensor = FlexibleTensor(name="w", num_elements=96 * 10, step_elements=10, least_steps=4, most_steps=64)
    assert tensor.coarsest(0, 480).atom_elements == 480
    assert tensor.coarsest(0, 960).atom_elements == 640
    assert tensor.coarsest(160, 320).atom_elements == 160
    # Cut after 12, 42 and 72 rows.
    assert tensor.coarsest(180, 300).atom_elements == 60
    assert largest_divisor(48, 4, 64) == 48
    assert largest_divisor(47, 4, 46) is None


def test_fewer_ranks_only_where_the_padding_is_too_much() -> None:
    """Nine atoms of 10 pad 78, 33 and 11 % on 8, 4 and 2 ranks; seven pad 14 % on any of these."""
    nine = fixed((90, 10))

    def ranks(tensors: Sequence[FlexibleTensor], accepted_percent: int) -> int:
        return solve_jointly(
            JointProblem(tensors=tuple(tensors), rank_options=(2, 4, 8), accepted_ppm=accepted_percent * 10_000)
        ).num_ranks

    assert [ranks(nine, percent) for percent in (80, 50, 20, 5)] == [8, 4, 2, 2]
    assert ranks(fixed((70, 10)), 15) == 8


@pytest.mark.parametrize(
    ("equal", "other", "shards"),
    [(((6, 1),) * 4, (36, 6), [3, 12]), (((8, 2),) * 6, (24, 8), [8, 10])],
    ids=["two and two", "one and five"],
)
def test_equal_tensors_may_part(
    equal: tuple[tuple[int, int], ...], other: tuple[int, int], shards: list[int]
) -> None:
    """On four ranks some fill up the other's buffer, and what is left fills one of its own."""
    problem = JointProblem(tensors=fixed(*equal, other), rank_options=(4,), max_buffers=2)
    found = solve_jointly(problem)
    require_sound(problem, found)
    assert found.padding_elements == 0
    assert sorted(buffer.layout.shard_elements for buffer in found.buffers) == shards


def every_choice(problem: JointProblem, num_ranks: int) -> Iterator[int]:
    """Padding of every distribution over buffers."""
    for places in product(range(problem.max_buffers), repeat=len(problem.tensors)):
        padding = 0
        for number in set(places):
            held = [tensor for tensor, place in zip(problem.tensors, places, strict=True) if place == number]
            buffer = LayoutProblem(
                tensors=tuple(
                    Tensor(name=t.name, num_elements=t.num_elements, atom_elements=t.step_elements) for t in held
                ),
                num_ranks=num_ranks,
                alignment_elements=problem.alignment_elements,
            )
            padding += padding_elements(buffer, solve(buffer).shard_elements)
        yield padding


@pytest.mark.parametrize("seed", range(25))
def test_against_all_distributions(seed: int) -> None:
    """The local search is no proof; on five tensors it must find the least."""
    rng = Random(seed)
    sizes = [(rng.randint(1, 60), rng.choice((1, 3, 4, 5, 8))) for _ in range(5)]
    problem = JointProblem(tensors=fixed(*sizes), rank_options=(rng.randint(2, 4),), max_buffers=3)
    found = solve_jointly(problem)
    require_sound(problem, found)
    assert found.padding_elements == min(every_choice(problem, problem.rank_options[0]))


def test_the_same_problem_gets_the_same_answer() -> None:
    rng = Random(7)
    sizes = [(rng.randint(50, 900), rng.choice((1, 3, 4, 5, 8, 48))) for _ in range(9)]
    problem = JointProblem(tensors=fixed(*sizes), rank_options=(5,))
    assert solve_jointly(problem) == solve_jointly(problem)


def test_changes_of_a_grouping() -> None:
    start = grouping([Group(0, 0, 4, 3), Group(1, 0, 2, 1), Group(0, 0, 4, 2)])
    assert start == (Group(0, 0, 4, 5), Group(1, 0, 2, 1))
    assert members_by_buffer(start) == {0: ((0, 4, 5), (1, 2, 1))}
    assert list(moves(start, [[4], [6, 2]], 2)) == [
        (Group(0, 1, 4, 5), Group(1, 0, 2, 1)),
        (Group(0, 0, 4, 5), Group(1, 1, 2, 1)),
        (Group(0, 0, 4, 5), Group(1, 0, 6, 1)),
    ]
    assert list(moves(start, [[4], [2]], 1)) == []
    apart = divided(start, start[0], 1, 2)
    assert apart == (Group(0, 0, 4, 3), Group(0, 1, 4, 2), Group(1, 0, 2, 1))
    assert list(exchanges(apart)) == [
        (Group(0, 0, 4, 2), Group(0, 1, 4, 3), Group(1, 0, 2, 1)),
        (Group(0, 0, 4, 5), Group(1, 1, 2, 1)),
    ]
    assert sum(g.num_tensors for g in kicked(apart, [[4], [2]], 3, Random(1), num_groups=2)) == 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensors": ()},
        {"rank_options": ()},
        {"max_buffers": 0},
        {"tensors": (FlexibleTensor(name="a", num_elements=4, least_steps=3, most_steps=2),)},
    ],
)
def test_what_is_no_joint_problem(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"needs|has no atom"):
        JointProblem(**{"tensors": fixed((4, 1)), "rank_options": (2,)} | wrong)
