"""How templates show values: units, sensible digits, times both relative and absolute."""

from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from api.quantities import change, count, duration, percent, quantity, size
from api.service.planner_process import Progress

SHORT_DIGITS = 12
_UNITS = ((86_400 * 365, "year"), (86_400 * 30, "month"), (86_400, "day"), (3600, "hour"), (60, "minute"))


def when(timestamp: str, now: datetime | None = None) -> Markup:
    """An ISO time as `3 minutes ago 2026-03-02 10:00:00 UTC`; the page keeps the first half right."""
    at = datetime.fromisoformat(timestamp).astimezone(UTC)
    return Markup('<time datetime="{}"><span class="ago">{}</span> <span class="at">{}</span></time>').format(
        timestamp, ago((now or datetime.now(UTC)) - at), at.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def ago(age: timedelta) -> str:
    """A `timedelta` in words.

    >>> ago(timedelta(seconds=5)), ago(timedelta(minutes=3)), ago(timedelta(days=-2))
    ('just now', '3 minutes ago', 'in 2 days')
    """
    seconds = age.total_seconds()
    for unit_s, unit in _UNITS:
        if abs(seconds) >= unit_s:
            words = count(int(abs(seconds) // unit_s), unit)
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "just now"


def short(content_hash: str) -> str:
    """The first digits of a hash, without `sha256:`.

    >>> short("sha256:0123456789abcdef")
    '0123456789ab'
    """
    return content_hash.removeprefix("sha256:")[:SHORT_DIGITS]


def rate(bytes_per_s: float) -> str:
    """Bandwidth as data sheets give it: decimal units.

    >>> rate(450_000_000_000), rate(1_250_000_000)
    ('450 GB/s', '1.25 GB/s')
    """
    for limit, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= limit:
            return f"{bytes_per_s / limit:.3g} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def latency(value_ns: int) -> str:
    """A duration of a data sheet: the digits that it gives.

    >>> latency(5_000), latency(2_500), latency(800)
    ('5 us', '2.5 us', '800 ns')
    """
    return f"{value_ns / 1000:.4g} us" if value_ns >= 1000 else f"{value_ns} ns"


def gap_of(progress: Progress) -> float | None:
    """Share of the best value so far that the bound leaves open; None before both are known."""
    best, bound = progress.incumbent_ns, progress.bound_ns
    if progress.incumbent_bytes is not None:
        best, bound = progress.incumbent_bytes, progress.bound_bytes
    return None if not best or bound is None else max(0, best - bound) / best


def best_of(progress: Progress) -> str:
    """The best value so far with its unit, in words before there is one."""
    if progress.incumbent_bytes is not None:
        return size(progress.incumbent_bytes)
    return "no plan yet" if progress.incumbent_ns is None else duration(progress.incumbent_ns)


FILTERS = {
    "best": best_of,
    "bytes": size,
    "change": change,
    "count": count,
    "duration": duration,
    "gap": gap_of,
    "latency": latency,
    "percent": percent,
    "quantity": quantity,
    "rate": rate,
    "short": short,
    "when": when,
}
"""Names in templates."""
