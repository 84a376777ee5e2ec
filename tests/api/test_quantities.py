import doctest

import pytest

from api import quantities
from api.quantities import change, count, duration, gib, milliseconds, percent, quantity, size

GIB = 1024**3


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(quantities).failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (1, "<0.01"), (GIB, "1.00"), (int(9.994 * GIB), "9.99"), (int(61.27 * GIB), "61.3")],
)
def test_gib(value, text):
    assert gib(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7 ns"), (1_500, "1.500 us"), (612_412_345, "612.4 ms"), (4_812_345_678, "4.812 s"), (10**12, "1000 s")],
)
def test_duration(value, text):
    assert duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 %"), (0.00001, "<0.01 %"), (0.0008, "0.08 %"), (0.01, "1.0 %"), (0.4231, "42.3 %")]
)
def test_percent_tells_small_from_none(value, text):
    assert percent(value) == text


def test_change_keeps_the_sign_of_a_change_too_small_to_show():
    assert change(100, 112) == "+12.0 %"
    assert change(100_000_000, 100_000_001) == "+<0.01 %"
    assert change(5, 5) == "same"
    assert change(0, 5) == "new"


def test_counts_and_quantities():
    assert count(1, "micro-batch") == "1 micro-batch"
    assert count(8, "micro-batch") == "8 micro-batches"
    assert count(1024, "rank") == "1,024 ranks"
    assert quantity(8_030_261_248) == "8.03 B"
    assert quantity(54_473) == "54.5 k"
    assert size(70 * GIB) == "70.0 GiB"
    assert milliseconds(3) == "<0.01"
