"""Decisions along the units of a plan, a row for each kind: runs of equal units, so that 1,000 stay small."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from api.folding import UnitTraits, unit_traits
from planner.block_names import ROOT_NAME, fold_names
from planner.schema import Decisions

_ROWS: tuple[tuple[str, Callable[[UnitTraits], str], str], ...] = (
    ("after forward", lambda traits: traits.reshard, "reshard"),
    ("activations", lambda traits: traits.activations, "keep"),
    ("prefetch", lambda traits: traits.prefetch, "implicit"),
    ("tier", lambda traits: traits.tiers, "device"),
    ("modules of a unit", lambda traits: str(traits.width), "1"),
    ("mesh", lambda traits: traits.mesh or "the plan's", "the plan's"),
    ("layout", lambda traits: traits.layout, "even"),
)
"""Name, value, and the value that is ordinary."""
_SHADES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StripValue:
    """One value of a decision: how many units have it, and where."""

    words: str
    shade: int
    """0 for what is ordinary, else which of the colours."""
    num_units: int
    units: str
    """Their names, folded."""
    path: str
    """SVG path over the units, one unit wide each and 1 high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripRow:
    """One kind of decision."""

    name: str
    values: tuple[StripValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStrip:
    """All rows over the same units."""

    num_units: int
    rows: tuple[StripRow, ...]
    ticks: tuple[tuple[int, str], ...]
    """Some places along the strip, and the units there."""


def decision_strip(decisions: Decisions) -> DecisionStrip:
    """The units in the order of the plan; rows that are ordinary everywhere are left out, but the first two."""
    traits = unit_traits(decisions)
    names = [unit.modules[0] or ROOT_NAME for unit in decisions.units]
    rows = []
    for number, (name, value_of, ordinary) in enumerate(_ROWS):
        values = [value_of(one) for one in traits]
        if number < 2 or set(values) != {ordinary}:
            rows.append(StripRow(name=name, values=_values(values, names, ordinary)))
    return DecisionStrip(num_units=len(names), rows=tuple(rows), ticks=_ticks(names))


def _values(values: list[str], names: list[str], ordinary: str) -> tuple[StripValue, ...]:
    others = [value for value in dict.fromkeys(values) if value != ordinary]
    shades = {ordinary: 0} | {value: 1 + number % _SHADES for number, value in enumerate(others)}
    return tuple(
        StripValue(
            words=value,
            shade=shades[value],
            num_units=values.count(value),
            units=fold_names(name for name, own in zip(names, values, strict=True) if own == value),
            path=_path(values, value),
        )
        for value in dict.fromkeys(values)
    )


def _path(values: list[str], wanted: str) -> str:
    """A rectangle for each run of units with the value."""
    parts, start = [], 0
    for value, run in groupby(values):
        width = len(list(run))
        if value == wanted:
            parts.append(f"M{start} 0h{width}v1h-{width}z")
        start += width
    return "".join(parts)


def _ticks(names: list[str]) -> tuple[tuple[int, str], ...]:
    """First, middle and last unit."""
    return tuple((place, names[place]) for place in sorted({0, len(names) // 2, len(names) - 1}))
