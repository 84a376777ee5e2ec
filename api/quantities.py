"""Numbers for people: bytes in binary units, durations, rates, with three significant digits."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def significant(value: float, digits: int = 3) -> str:
    """Decimal text with this many significant digits, never in scientific notation.

    >>> significant(61.2749), significant(7.0), significant(1234.5), significant(0.01234)
    ('61.3', '7.00', '1234', '0.0123')
    """
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if whole:
        return f"{value:.{max(0, digits - whole)}f}"
    leading_zeros = len(f"{abs(value):.9f}"[2:]) - len(f"{abs(value):.9f}"[2:].lstrip("0"))
    return f"{value:.{leading_zeros + digits}f}"


def size(value_bytes: int) -> str:
    """Bytes in the largest binary unit that keeps the number at 1 or more."""
    value, unit = float(value_bytes), 0
    while abs(value) >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value_bytes} B" if unit == 0 else f"{significant(value)} {_BINARY[unit]}"


def gib(value_bytes: int) -> str:
    """Bytes in GiB without the unit, for columns: two decimals below 10, one above."""
    value = value_bytes / 1024**3
    if value and abs(value) < 0.005:
        return "<0.01"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def duration(value_ns: int) -> str:
    """Nanoseconds in the unit that keeps one to three digits before the point."""
    for limit, unit in ((1_000, "ns"), (1_000_000, "us"), (1_000_000_000, "ms")):
        if value_ns < limit:
            scaled = value_ns / (limit / 1_000)
            return f"{value_ns} ns" if unit == "ns" else f"{significant(scaled, 4)} {unit}"
    return f"{significant(value_ns / 1e9, 4)} s"


def milliseconds(value_ns: int) -> str:
    """Nanoseconds as milliseconds without the unit, for columns."""
    value = value_ns / 1e6
    if value and value < 0.005:
        return "<0.01"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def percent(fraction: float) -> str:
    """A fraction as percent: enough digits to tell it from zero."""
    value = fraction * 100
    if value == 0:
        return "0 %"
    if abs(value) < 0.01:
        return "<0.01 %"
    return f"{value:.2f} %" if abs(value) < 0.995 else f"{value:.1f} %"


def change(before: float, after: float) -> str:
    """Relative change with its sign."""
    if before == after:
        return "same"
    if before == 0:
        return "new"
    value = (after - before) / before * 100
    digits = 2 if abs(value) < 1 else 1
    text = f"{value:+.{digits}f} %"
    return text if float(f"{value:.{digits}f}") else f"{'+' if value > 0 else '-'}<0.01 %"


def quantity(value: float) -> str:
    """A large count with a decimal prefix: `8.03 B`, `428 k`."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{significant(value / limit)} {suffix}"
    return str(int(value)) if float(value).is_integer() else significant(value)


def count(number: int, noun: str) -> str:
    """`1 rank`, `8 ranks`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"
