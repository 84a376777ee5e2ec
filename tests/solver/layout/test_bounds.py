"""Each argument about shard sizes, by hand."""

import pytest

from solver.layout.bounds import ShardSizes
from solver.layout.problem import LayoutProblem, Tensor


def sizes(*tensors: tuple[int, int], ranks: int, alignment: int = 1) -> ShardSizes:
    return ShardSizes(
        LayoutProblem(
            tensors=tuple(
                Tensor(name=str(number), num_elements=elements, atom_elements=atom)
                for number, (elements, atom) in enumerate(tensors)
            ),
            num_ranks=ranks,
            alignment_elements=alignment,
        )
    )


def test_average_and_alignment() -> None:
    assert sizes((10, 1), ranks=3).next_open(0) == 4
    assert sizes((10, 1), ranks=3, alignment=3).next_open(0) == 6
    assert sizes((10, 1), ranks=3).next_open(7) == 7


def test_atoms_of_tensors_over_many_ranks_divide_the_shard() -> None:
    """30 by fives on ten ranks: at least 3, so 5; from 16 on it has one edge inside and 16 to 19 hold 15 + 15."""
    found = sizes((30, 5), ranks=10)
    assert found.next_open(0) == 5
    assert found.next_open(6) == 10
    assert found.next_open(11) == 15
    assert found.next_open(16) == 16


def test_a_tensor_of_just_two_shards_has_to_start_on_an_edge() -> None:
    """12 by fives on two ranks of 6 would be cut in the middle."""
    assert sizes((12, 5), ranks=2).next_open(0) == 7


def test_a_tensor_over_two_ranks() -> None:
    """11 by fours is 8 + 3, or 4 + 7: no shard below 7 holds one of its parts."""
    assert sizes((11, 4), ranks=2).next_open(0) == 7
    assert sizes((11, 6), ranks=2).next_open(0) == 6
    assert sizes((11, 11), ranks=2).next_open(0) == 11


def test_whole_tensors_meet() -> None:
    """Five tensors on two ranks: some rank has three of them."""
    assert sizes((7, 7), (7, 7), (6, 6), (5, 5), (5, 5), ranks=2).next_open(0) == 16


def test_a_common_divisor_of_all_atoms() -> None:
    """12 + 18 in sixes on four ranks: the average of 8 holds one atom, and five atoms need two somewhere."""
    assert sizes((12, 6), (18, 6), ranks=4).next_open(0) == 12


def test_a_few_elements_fill_what_the_divisor_leaves() -> None:
    """Nine fours and single elements on three ranks: 13 = 3 x 4 + 1, or 16 when there are ten fours."""
    fours = ((12, 4), (12, 4), (12, 4))
    assert sizes(*fours, (1, 1), (1, 1), (1, 1), ranks=3).next_open(0) == 13
    assert sizes(*fours, (1, 1), ranks=3).next_open(0) == 13
    assert sizes(*fours, (4, 4), (1, 1), ranks=3).next_open(0) == 16


def test_how_many_ranks_can_have_a_piece_of_what_is_not_divisible() -> None:
    """Of 51 on four ranks, three elements reach two ranks at most, and the other two hold twelve of 13.

    A tensor of 18 reaches three ranks of 11: the fourth holds eight, and 41 are less than 42.
    """
    assert sizes(*((12, 4),) * 4, (3, 1), ranks=4).next_open(0) == 14
    assert sizes((12, 4), (12, 4), (18, 1), ranks=4).next_open(0) == 12


@pytest.mark.parametrize(("ranks", "shard"), [(128, 25_436_160), (256, 12_902_400), (512, 6_635_520)])
def test_experts_by_128_rows(ranks: int, shard: int) -> None:
    """GPT-OSS-120B's stacked experts alone: multiples of 128 x 2880 that hold their share."""
    atom = 128 * 2880
    experts = ((128 * 5760 * 2880, atom), (128 * 2880 * 2880, atom))
    per_rank = -(-(128 * 5760 + 128 * 2880) // (128 * ranks))
    assert sizes(*experts, ranks=ranks, alignment=8).next_open(0) == per_rank * atom <= shard
