"""The check finds each way in which a layout can be wrong."""

import pytest

from solver.layout.problem import Layout, LayoutProblem, Tensor, check, padding_elements

PROBLEM = LayoutProblem(
    tensors=(
        Tensor(name="a", num_elements=6, atom_elements=2),
        Tensor(name="b", num_elements=3, atom_elements=3),
        Tensor(name="c", num_elements=2),
    ),
    num_ranks=3,
    alignment_elements=2,
)


def layout(*offsets: int, shard: int = 4, bound: int = 4) -> Layout:
    return Layout(offsets=offsets, shard_elements=shard, lower_bound_elements=bound)


def test_a_valid_layout() -> None:
    found = layout(0, 8, 6)
    assert check(PROBLEM, found) == ()
    assert found.order == (0, 2, 1)
    assert found.status == "optimal"
    assert layout(0, 8, 6, bound=2).status == "bounded"
    assert padding_elements(PROBLEM, 4) == 1


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (layout(0, 5, 8), "overlap"),
        (layout(0, 8, 9), "overlap"),
        (layout(0, 10, 6), "leaves the buffer"),
        (layout(-1, 8, 6), "leaves the buffer"),
        (layout(1, 8, 11), "'a' is cut inside an atom at 4"),
        (layout(0, 6, 9), "'b' is cut inside an atom at 8"),
        (layout(0, 8, 6, shard=5), "no positive multiple of 2"),
        (layout(0, 8, 6, bound=6), "is above the shard size"),
        (layout(0, 8), "2 offsets for 3 tensors"),
    ],
)
def test_a_wrong_layout(wrong: Layout, word: str) -> None:
    assert any(word in text for text in check(PROBLEM, wrong)), check(PROBLEM, wrong)


def test_edges_of_ranks_that_differ() -> None:
    problem = LayoutProblem(tensors=PROBLEM.tensors, num_ranks=2, alignment_elements=2, shares=(1, 2))
    assert problem.edges(4) == (0, 4, 12)
    assert problem.num_shares == 3
    assert check(problem, layout(0, 8, 6)) == ()
    assert check(problem, layout(1, 7, 10)) == ("'a' is cut inside an atom at 4",)


@pytest.mark.parametrize(
    ("tensors", "ranks", "alignment", "shares"),
    [
        ((), 1, 1, ()),
        (PROBLEM.tensors, 0, 1, ()),
        (PROBLEM.tensors, 1, 0, ()),
        (PROBLEM.tensors, 2, 1, (1,)),
        (PROBLEM.tensors, 2, 1, (1, 0)),
        ((Tensor(name="a", num_elements=0),), 1, 1, ()),
        ((Tensor(name="a", num_elements=1, atom_elements=0),), 1, 1, ()),
        ((PROBLEM.tensors[0], PROBLEM.tensors[0]), 1, 1, ()),
    ],
)
def test_what_is_no_problem(
    tensors: tuple[Tensor, ...], ranks: int, alignment: int, shares: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"must|needs|shares"):
        LayoutProblem(tensors=tensors, num_ranks=ranks, alignment_elements=alignment, shares=shares)
