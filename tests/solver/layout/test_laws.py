"""Laws of optimal layouts."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from solver.layout.problem import LayoutProblem, Tensor, check
from solver.layout.search import solve

Size = tuple[int, int]
SIZES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from((1, 2, 3, 4, 6, 8, 12, 50))), min_size=1, max_size=5)
RANKS = st.integers(1, 6)


def problem(sizes: Sequence[Size], ranks: int, alignment: int = 1, shares: tuple[int, ...] = ()) -> LayoutProblem:
    return LayoutProblem(
        tensors=tuple(
            Tensor(name=f"t{number}", num_elements=elements, atom_elements=atom)
            for number, (elements, atom) in enumerate(sizes)
        ),
        num_ranks=ranks,
        alignment_elements=alignment,
        shares=shares,
    )


@settings(max_examples=60, deadline=None)
@given(SIZES, RANKS, st.integers(1, 4), st.booleans(), st.data())
def test_every_result_passes_the_check(
    sizes: list[Size], ranks: int, alignment: int, differ: bool, data: st.DataObject
) -> None:
    shares = tuple(data.draw(st.integers(1, 4)) for _ in range(ranks)) if differ else ()
    asked = problem(sizes, ranks, alignment, shares)
    found = solve(asked)
    assert check(asked, found) == ()
    assert found.status == "optimal"


@settings(max_examples=60, deadline=None)
@given(SIZES, RANKS, st.integers(1, 3), st.permutations(range(5)))
def test_names_and_order_do_not_matter(sizes: list[Size], ranks: int, alignment: int, order: list[int]) -> None:
    asked = problem(sizes, ranks, alignment)
    shuffled = [asked.tensors[number] for number in order if number < len(sizes)]
    other = replace(asked, tensors=tuple(replace(tensor, name=f"other {tensor.name}") for tensor in shuffled))
    assert solve(asked).shard_elements == solve(other).shard_elements


@settings(max_examples=60, deadline=None)
@given(SIZES, RANKS, st.integers(1, 3), st.integers(2, 9))
def test_scaling_everything_scales_the_shards(sizes: list[Size], ranks: int, alignment: int, factor: int) -> None:
    scaled = problem([(factor * e, factor * g) for e, g in sizes], ranks, factor * alignment)
    assert solve(scaled).shard_elements == factor * solve(problem(sizes, ranks, alignment)).shard_elements


@settings(max_examples=60, deadline=None)
@given(SIZES, RANKS, st.data())
def test_a_finer_atom_never_needs_more(sizes: list[Size], ranks: int, data: st.DataObject) -> None:
    finer = [(e, data.draw(st.sampled_from([d for d in range(1, g + 1) if g % d == 0]))) for e, g in sizes]
    assert solve(problem(finer, ranks)).shard_elements <= solve(problem(sizes, ranks)).shard_elements


@settings(max_examples=60, deadline=None)
@given(SIZES, RANKS, st.integers(1, 30))
def test_leaving_a_tensor_out_never_needs_more(sizes: list[Size], ranks: int, elements: int) -> None:
    more = problem([*sizes, (elements, 1)], ranks)
    assert solve(problem(sizes, ranks)).shard_elements <= solve(more).shard_elements
