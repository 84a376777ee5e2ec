"""Chooses points to trace and fits the six terms of a polynomial to them, exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, cast

from planner.schema.base import Part
from planner.schema.model import CallKind, Liveness, Moment, TracePoint
from planner.schema.polynomial import Polynomial
from runtime_client.describe.errors import DifferentTraces, NotPolynomial

T = TypeVar("T")

TERMS = ("one", "b", "s", "bs", "ss", "bss")
FIXED_BATCH_TERMS = ("one", "bs", "bss")
_MIN_SEQUENCE = 4
_FINE_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSet:
    """Points that determine `terms`, and at least one more that checks them."""

    points: tuple[TracePoint, ...]
    terms: tuple[str, ...]


def general_points(micro_batch: int, sequence: int) -> PointSet:
    """Seven points for all six terms; the first is the one asked for, none has a longer sequence."""
    step = _step(sequence)
    grid = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 3))
    return PointSet(
        points=tuple(
            TracePoint(micro_batch=micro_batch + more, sequence=sequence - less * step) for more, less in grid
        ),
        terms=TERMS,
    )


def fixed_batch_points(micro_batch: int, sequence: int) -> PointSet:
    """Four points of one micro-batch, for models that do other things at another one."""
    step = _step(sequence)
    return PointSet(
        points=tuple(TracePoint(micro_batch=micro_batch, sequence=sequence - less * step) for less in range(4)),
        terms=FIXED_BATCH_TERMS,
    )


def _step(sequence: int) -> int:
    if sequence < _MIN_SEQUENCE:
        raise NotPolynomial(f"sequence {sequence} is too short to fit anything: ask for at least {_MIN_SEQUENCE}")
    fine = sequence // _FINE_STEPS
    return fine if sequence % _FINE_STEPS == 0 and fine >= _FINE_STEPS else sequence // _MIN_SEQUENCE


class Fitter:
    """Merges equal structures whose polynomials are constants, one for each point, into one with real terms."""

    def __init__(self, point_set: PointSet) -> None:
        self._points = point_set.points
        self._terms = point_set.terms
        self._rows = [[_monomial(term, point) for term in self._terms] for point in self._points]
        self._inverse = _inverse([row[:] for row in self._rows[: len(self._terms)]])
        self._cache: dict[tuple[int, ...], Polynomial] = {}

    def merge(self, values: Sequence[T], module: str, quantity: str = "") -> T:
        """One value from equal structures: tuples and parts of any depth.

        Args:
            values: the structure at each point.
            module: path of the call, for messages.
            quantity: path inside the structure, for messages.

        Raises:
            DifferentTraces: the structures differ.
            NotPolynomial: some quantity is not a combination of the terms.
        """
        return cast("T", self._merge(values, module, quantity))

    def _merge(self, values: Sequence[Any], module: str, quantity: str) -> object:
        first = values[0]
        if isinstance(first, Polynomial):
            return self.solve([value.one for value in values], module, quantity)
        if isinstance(first, Part):
            fields = {
                name: self._merge([getattr(value, name) for value in values], module, f"{quantity}.{name}")
                for name in type(first).model_fields
            }
            return type(first)(**fields)
        if isinstance(first, tuple):
            if any(len(value) != len(first) for value in values):
                raise _different(module, quantity)
            columns = zip(*values, strict=True)
            return tuple(
                self._merge(column, module, f"{quantity}[{index}]") for index, column in enumerate(columns)
            )
        if any(value != first for value in values):
            raise _different(module, quantity)
        return first

    def solve(self, values: Sequence[int], module: str, quantity: str) -> Polynomial:
        """Terms that give exactly these values at the points; errors as in `merge`."""
        key = tuple(values)
        if key not in self._cache:
            self._cache[key] = self._solve(key, module, quantity)
        return self._cache[key]

    def _solve(self, values: tuple[int, ...], module: str, quantity: str) -> Polynomial:
        count = len(self._terms)
        terms = [
            sum((a * v for a, v in zip(row, values[:count], strict=True)), Fraction(0)) for row in self._inverse
        ]
        for row, value, point in zip(self._rows, values, self._points, strict=True):
            predicted = sum((a * c for a, c in zip(row, terms, strict=True)), Fraction(0))
            if predicted != value:
                raise NotPolynomial(
                    f"module {module!r}: {quantity.lstrip('.')} is {value} at micro-batch {point.micro_batch} and "
                    f"sequence {point.sequence}, where the terms {', '.join(self._terms)} give "
                    f"{float(predicted):.1f}: avoid padding and steps in size, or ask for another size"
                )
        return Polynomial(**{term: _number(value) for term, value in zip(self._terms, terms, strict=True)})


def without_dominated(kind: CallKind) -> CallKind:
    """The same kind without moments that another one of the same pass is never below."""
    selective = tuple(entry.model_copy(update={"liveness": _pruned(entry.liveness)}) for entry in kind.selective)
    return kind.model_copy(
        update={
            "none": _pruned(kind.none),
            "full": None if kind.full is None else _pruned(kind.full),
            "selective": selective,
        }
    )


def _pruned(liveness: Liveness) -> Liveness:
    update = {
        "forward": _peaks(liveness.forward),
        "backward": _peaks(liveness.backward),
        "in_sums": _maxima(liveness.in_sums),
    }
    return liveness.model_copy(update=update)


def _peaks(moments: tuple[Moment, ...]) -> tuple[Moment, ...]:
    kept: list[Moment] = []
    for moment in moments:
        if any(_is_below(moment, other) for other in kept):
            continue
        kept = [other for other in kept if not _is_below(other, moment)]
        kept.append(moment)
    return tuple(kept)


def _is_below(one: Moment, other: Moment) -> bool:
    return one.num_gradients <= other.num_gradients and _is_nowhere_above(one.live_bytes, other.live_bytes)


def _maxima(sizes: tuple[Polynomial, ...]) -> tuple[Polynomial, ...]:
    """Those that neither another one nor 0 is never below; of equal ones the first."""
    kept: list[Polynomial] = []
    for size in sizes:
        if not any(_is_nowhere_above(size, other) for other in (Polynomial(), *kept)):
            kept = [other for other in kept if not _is_nowhere_above(other, size)]
            kept.append(size)
    return tuple(kept)


def _is_nowhere_above(one: Polynomial, other: Polynomial) -> bool:
    return all(getattr(one, term) <= getattr(other, term) for term in TERMS)


def _different(module: str, quantity: str) -> DifferentTraces:
    return DifferentTraces(
        f"module {module!r}: {quantity.lstrip('.')} has another form at another size: the model must run the same "
        "operations at every micro-batch and sequence length near the one asked for; avoid branches on sizes"
    )


def _monomial(term: str, point: TracePoint) -> Fraction:
    powers = {"one": (0, 0), "b": (1, 0), "s": (0, 1), "bs": (1, 1), "ss": (0, 2), "bss": (1, 2)}[term]
    return Fraction(point.micro_batch ** powers[0] * point.sequence ** powers[1])


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss-Jordan on a small square matrix of full rank."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for row in range(size):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[size:] for row in rows]
