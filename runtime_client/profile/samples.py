"""Samples of one quantity, and what is said of them: median, tenth and 99th percentile, number."""

from collections.abc import Sequence
from statistics import median, quantiles

from planner.schema import Quantiles

_P10 = 9
_P99 = 98
"""Places among the 99 cuts of `statistics.quantiles`."""


def middle(samples: Sequence[float]) -> int:
    """Median, rounded."""
    return round(median(samples))


def spread(samples: Sequence[float]) -> Quantiles:
    """Quantiles by linear interpolation between samples; of one sample it is that."""
    if len(samples) == 1:
        only = round(samples[0])
        return Quantiles(p10=only, p99=only, num_samples=1)
    cuts = quantiles(samples, n=100, method="inclusive")
    return Quantiles(p10=round(cuts[_P10]), p99=round(cuts[_P99]), num_samples=len(samples))
