"""Which unit a number is probably in that is far from what it should be."""

_WITHIN = 30
"""A ratio this near to that of two units is taken for it."""
_TIMES = ((10**3, "microseconds"), (10**6, "milliseconds"), (10**9, "seconds"))
_RATES = ((10**3, "kB/s"), (10**6, "MB/s"), (10**9, "GB/s"))
_BITS = 8


def time_hint(measured_ns: int, expected_ns: int) -> str:
    """Words for a time far from an expected one; empty where no unit explains it."""
    if measured_ns < expected_ns:
        for factor, unit in _TIMES:
            if _is_near(expected_ns, max(1, measured_ns) * factor):
                return f"; it looks like {unit}: nanoseconds are {factor:,} times as many"
        return ""
    for factor, _ in _TIMES:
        if _is_near(measured_ns, expected_ns * factor):
            return f"; it looks like nanoseconds multiplied by {factor:,} once too often, or like an outlier"
    return "; it looks like an outlier"


def rate_hint(measured_per_s: int, expected_per_s: int) -> str:
    """Words for a bandwidth far from an expected one; empty where no unit explains it."""
    if measured_per_s > expected_per_s:
        is_bits = measured_per_s <= 2 * _BITS * expected_per_s
        return "; it looks like bits per second: bytes are an eighth" if is_bits else ""
    for factor, unit in _RATES:
        if _is_near(expected_per_s, measured_per_s * factor):
            return f"; it looks like {unit}: bytes per second are {factor:,} times as many"
    return ""


def _is_near(one: int, other: int) -> bool:
    return one <= _WITHIN * other and other <= _WITHIN * one
