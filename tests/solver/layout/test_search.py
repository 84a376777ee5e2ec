"""The search on problems whose answer is known."""

import pytest

from benchmarks.layout_padding import LAYERS, PUBLISHED_PERCENT, ROWS, problem_of, published
from solver.layout.fill import Effort, Filler
from solver.layout.problem import LayoutProblem, Tensor, check, padding_elements
from solver.layout.search import solve, solve_in_given_order


def problem(
    *tensors: tuple[int, int], ranks: int, alignment: int = 1, shares: tuple[int, ...] = ()
) -> LayoutProblem:
    return LayoutProblem(
        tensors=tuple(
            Tensor(name=str(number), num_elements=elements, atom_elements=atom)
            for number, (elements, atom) in enumerate(tensors)
        ),
        num_ranks=ranks,
        alignment_elements=alignment,
        shares=shares,
    )


def test_the_order_matters() -> None:
    """Whole threes and fives on two ranks: 3 + 3 and 5 + 5 as they come, 3 + 5 on each at best."""
    assert solve(problem((3, 3), (3, 3), (5, 5), (5, 5), ranks=2)).shard_elements == 8
    found = solve(problem((3, 3), (5, 5), (5, 5), (3, 3), ranks=2))
    assert (found.shard_elements, found.order) == (8, (0, 1, 2, 3))
    given = solve_in_given_order(problem((3, 3), (3, 3), (5, 5), (5, 5), ranks=2))
    assert given.shard_elements == 10


def test_the_given_order_is_kept_where_it_does_as_well() -> None:
    tensors = [(6, 1), (64, 8), (2, 1), (128, 16), (8, 1)]
    assert solve(problem(*tensors, ranks=2)).order == (0, 1, 2, 3, 4)
    assert solve(problem(*tensors[::-1], ranks=2)).order == (0, 1, 2, 3, 4)
    # 10 is the average and no order has it; 11 is found in another order first.
    found = solve(problem((5, 2), (11, 4), (4, 1), ranks=2))
    assert (found.shard_elements, found.order) == (11, (0, 1, 2))


def test_ranks_that_differ_get_their_shares() -> None:
    """A rank with twice the share takes the tensor of ten, the other one that of five."""
    found = solve(problem((5, 5), (10, 10), ranks=2, shares=(2, 1)))
    assert (found.shard_elements, found.offsets, found.status) == (5, (10, 0), "optimal")


@pytest.mark.parametrize(
    ("tensors", "shares", "shard"),
    [
        (((10, 4), (28, 28), (13, 4), (38, 4), (1, 1)), (3, 1, 3, 2, 2), 10),
        (((8, 5), (7, 7), (4, 4), (4, 3)), (1, 2, 3, 2, 2, 2), 3),
    ],
)
def test_a_gap_takes_nothing_that_fits_nowhere(
    tensors: tuple[tuple[int, int], ...], shares: tuple[int, ...], shard: int
) -> None:
    """Found by `make verify-layout`: the larger tensors left gaps for smaller ones that no place would take."""
    asked = problem(*tensors, ranks=len(shares), shares=shares)
    found = solve(asked)
    assert check(asked, found) == ()
    assert (found.shard_elements, found.status) == (shard, "optimal")


@pytest.mark.parametrize(("layer", "ranks"), PUBLISHED_PERCENT)
@pytest.mark.parametrize("rows", ROWS)
def test_no_published_figure_is_better(layer: str, ranks: int, rows: int) -> None:
    asked = problem_of(LAYERS[layer], rows, ranks)
    found = solve(asked)
    assert check(asked, found) == ()
    assert found.status == "optimal"
    assert found.shard_elements <= published(asked)
    figure = PUBLISHED_PERCENT[layer, ranks][ROWS.index(rows)]
    percent = 100 * padding_elements(asked, found.shard_elements) / asked.num_elements
    assert round(percent, len(figure.partition(".")[2])) <= float(figure)


@pytest.mark.parametrize(("rows", "shard", "percent"), [(1, 552_960, 31), (16, 2_949_120, 601)])
def test_widths_that_hardly_divide_one_another(rows: int, shard: int, percent: int) -> None:
    """GPT-OSS attention on 64 ranks: 31 % and 601 %, as published; the least common multiples force it."""
    asked = problem_of(LAYERS["GPT-OSS-120B"][:13], rows, 64)
    assert asked.num_elements == 2 * 11_796_480 + 2 * 1_474_560 + 368_640 + 13_952
    found = solve(asked)
    assert (found.shard_elements, found.status) == (shard, "optimal")
    assert round(100 * padding_elements(asked, shard) / asked.num_elements) == percent


def test_ten_thousand_tensors() -> None:
    experts = [(64 * 7, 4 * 7), (64 * 7, 4 * 7), (7 * 64, 4 * 64 // 16)] * 3333
    asked = problem(*experts, (7, 1), ranks=4096)
    found = solve(asked)
    assert check(asked, found) == ()
    assert padding_elements(asked, found.shard_elements) < 0.02 * asked.num_elements


def test_little_effort_still_gives_a_layout_and_a_bound() -> None:
    asked = problem_of(LAYERS["DeepSeek-V3"], 1, 1024)
    found = solve(asked, Effort(1))
    assert check(asked, found) == ()
    assert found.lower_bound_elements <= solve(asked).shard_elements <= found.shard_elements


def test_more_effort_is_never_worse() -> None:
    asked = problem((65, 13), (64, 16), (50, 10), (33, 11), (21, 7), (20, 20), (9, 3), (5, 1), ranks=3)
    found = [solve(asked, Effort(effort)) for effort in (10, 100, 1000, 100_000)]
    assert [layout.shard_elements for layout in found] == sorted(
        (layout.shard_elements for layout in found), reverse=True
    )
    assert found[-1].status == "optimal"


def test_a_filling_says_whether_it_left_anything_out() -> None:
    asked = problem((3, 3), (3, 3), (5, 5), (5, 5), ranks=2)
    filler = Filler(asked)
    assert filler.num_classes == 2
    found = filler.fill(8, width=100, effort=Effort(10_000))
    assert found.is_exact
    assert found.offsets is not None
    assert filler.fill(7, width=100, effort=Effort(10_000)).is_exact
    assert filler.fill(7, width=100, effort=Effort(10_000)).offsets is None
    assert not filler.fill(8, width=100, effort=Effort(0)).is_exact
    narrow = Filler(problem((9, 9), (7, 7), (6, 6), (5, 5), (4, 4), (3, 3), ranks=2))
    assert not narrow.fill(17, width=1, effort=Effort(10_000)).is_exact


def test_of_the_same_tensors_the_order_that_ends_first_counts() -> None:
    """On three ranks of 7, 4 and 6 end at 10 in this order and leave 11 for the ten, which starts at 10."""
    asked = problem((6, 3), (4, 4), (10, 4), ranks=3)
    assert Filler(asked).fill(7, width=100, effort=Effort(10_000)).offsets == (4, 0, 10)
