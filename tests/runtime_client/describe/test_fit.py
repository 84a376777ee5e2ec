from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.schema import CallKind, Liveness, Moment, Polynomial, SavedTensor, TracePoint
from runtime_client.describe import DifferentTraces, NotPolynomial
from runtime_client.describe.fit import Fitter, fixed_batch_points, general_points, without_dominated

TERM = st.integers(min_value=-(2**20), max_value=2**20)


def monomials(point: TracePoint) -> tuple[int, ...]:
    b, s = point.micro_batch, point.sequence
    return 1, b, s, b * s, s * s, b * s * s


@given(terms=st.tuples(*[TERM] * 6), micro_batch=st.integers(1, 16), sequence=st.integers(4, 8192))
@settings(deadline=None)
def test_every_polynomial_is_found_again(terms: tuple[int, ...], micro_batch: int, sequence: int) -> None:
    points = general_points(micro_batch, sequence)
    names = ("one", "b", "s", "bs", "ss", "bss")
    values = [sum(a * b for a, b in zip(terms, monomials(p), strict=True)) for p in points.points]
    found = Fitter(points).solve(values, "module", "size")
    assert found == Polynomial(**dict(zip(names, terms, strict=True)))


def test_points_are_near_and_never_longer() -> None:
    points = general_points(1, 8192).points
    assert (points[0].micro_batch, points[0].sequence) == (1, 8192)
    assert max(point.sequence for point in points) == 8192
    assert min(point.sequence for point in points) >= 6144
    assert len({(point.micro_batch, point.sequence) for point in points}) == 7


def test_points_of_one_micro_batch() -> None:
    points = fixed_batch_points(3, 100)
    assert {point.micro_batch for point in points.points} == {3}
    table = [7 * point.sequence**2 for point in points.points]
    found = Fitter(points).solve(table, "module", "size")
    assert found.bss == pytest.approx(float(Fraction(7, 3)))
    assert [found.at(3, point.sequence) for point in points.points] == table


def test_too_short_to_fit() -> None:
    with pytest.raises(NotPolynomial, match="too short"):
        general_points(1, 3)


def test_what_does_not_fit_names_module_and_quantity() -> None:
    points = general_points(2, 64)
    with pytest.raises(NotPolynomial, match=r"'layers.0'.*saved\[1\].size_bytes is"):
        Fitter(points).solve([p.sequence**3 for p in points.points], "layers.0", ".saved[1].size_bytes")


def _kind(*sizes: int) -> CallKind:
    saved = tuple(SavedTensor(size_bytes=Polynomial(one=size)) for size in sizes)
    return CallKind(none=Liveness(saved=saved))


def test_structures_must_agree() -> None:
    points = general_points(2, 64)
    kinds = [*[_kind(8)] * 6, _kind(8, 8)]
    with pytest.raises(DifferentTraces, match=r"'layers.0'.*none.saved"):
        Fitter(points).merge(kinds, "layers.0")


def test_dominated_moments_are_left_out() -> None:
    low = Moment(live_bytes=Polynomial(one=1, bs=2))
    high = Moment(live_bytes=Polynomial(one=1, bs=3))
    other = Moment(live_bytes=Polynomial(one=5, bs=1))
    later = Moment(live_bytes=Polynomial(one=1, bs=2), num_gradients=2)
    liveness = Liveness(forward=(low, high, other), backward=(high, later, low))
    pruned = without_dominated(CallKind(none=liveness)).none
    assert pruned.forward == (high, other)
    assert pruned.backward == (high, later)


def test_sums_that_need_nothing_are_left_out_too() -> None:
    low, high, other = Polynomial(bs=2), Polynomial(bs=3), Polynomial(s=1)
    liveness = Liveness(in_sums=(Polynomial(), low, high, other, high))
    assert without_dominated(CallKind(none=liveness)).none.in_sums == (high, other)
