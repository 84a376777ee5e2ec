"""Time of work at a rate, in integer nanoseconds rounded up."""

from fractions import Fraction

NS_PER_S = 10**9


def time_ns(work: int, rate_per_s: int, *, percent: int = 100) -> int:
    """Nanoseconds for `work` at `percent` of `rate_per_s`, rounded up; exact for integers of any size."""
    return -(-work * NS_PER_S * 100 // (rate_per_s * percent))


def exact_fraction(value: float) -> Fraction:
    """The decimal that a person wrote, as a fraction of at most six digits (the same on every platform)."""
    return Fraction(value).limit_denominator(10**6)
