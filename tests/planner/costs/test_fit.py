from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from planner.costs.fit import nonnegative_fit

SIZES = ((1, 64), (1, 32), (2, 32), (1, 16))


def rows(sizes=SIZES):
    return tuple((Fraction(1), Fraction(b * s), Fraction(b * s * s)) for b, s in sizes)


def times(coefficients, of_rows):
    return tuple(round(sum(c * f for c, f in zip(coefficients, row, strict=True))) for row in of_rows)


def value(coefficients, row):
    return sum(c * f for c, f in zip(coefficients, row, strict=True))


@given(st.tuples(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(0, 10**3)))
def test_what_obeys_the_formula_is_found_again(coefficients):
    assert nonnegative_fit(rows(), times(coefficients, rows())) == coefficients


@given(st.tuples(*[st.integers(1, 10**9)] * 4))
def test_coefficients_are_never_negative_and_no_feature_alone_is_better(measured):
    found = nonnegative_fit(rows(), measured)

    def loss(coefficients):
        return sum((value(coefficients, row) / t - 1) ** 2 for row, t in zip(rows(), measured, strict=True))

    assert found is not None
    assert min(found) >= 0
    for place in range(3):
        scale = [row[place] / t for row, t in zip(rows(), measured, strict=True)]
        alone = [Fraction(0)] * 3
        alone[place] = sum(scale) / sum(one * one for one in scale)
        assert loss(found) <= loss(alone)


def test_a_falling_time_gets_no_negative_slope():
    found = nonnegative_fit(rows(((1, 64), (1, 32), (1, 16))), (100, 200, 300))
    assert found is not None
    assert found[1] == found[2] == 0


def test_residuals_are_relative():
    """A tenth of a short time weighs as much as a tenth of a long one."""
    (slope,) = nonnegative_fit(((Fraction(1),), (Fraction(1000),)), (1, 1210)) or (0,)
    assert abs(float(slope) - 1.09) < 0.01


def test_equal_points_do_not_determine_three_terms():
    found = nonnegative_fit(rows(((1, 8), (1, 8), (1, 8))), (80, 80, 80))
    assert found is not None
    assert value(found, rows(((1, 8),))[0]) == 80
