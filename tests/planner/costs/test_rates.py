from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.rates import exact_fraction, time_ns
from planner.costs.slowdown import NO_SLOWDOWN, Slowdown
from planner.schema import InconsistentRequest


@given(work=st.integers(0, 2**70), rate=st.integers(1, 2**60), percent=st.integers(1, 100))
def test_time_is_the_exact_quotient_rounded_up(work, rate, percent):
    exact = Fraction(work * 10**9 * 100, rate * percent)
    assert 0 <= time_ns(work, rate, percent=percent) - exact < 1


def test_fractions_are_the_decimals_that_were_written():
    assert exact_fraction(0.04) == Fraction(1, 25)
    assert exact_fraction(0.1) == Fraction(1, 10)


def test_slowdown_stretches_by_the_speed_that_is_left():
    assert Slowdown.of(0.2, path="x").stretched_ns(800) == 1_000
    assert Slowdown.of(0.1, path="x").stretched_ns(1) == 2
    assert Slowdown.of(0.0, path="x") == NO_SLOWDOWN


def test_a_slowdown_of_one_is_refused_with_its_path():
    with pytest.raises(InconsistentRequest, match=r"profile\.x is 1\.0: the work would never end; give a share"):
        Slowdown.of(1.0, path="profile.x")
