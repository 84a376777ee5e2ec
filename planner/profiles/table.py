"""A profile from a table of comma-separated values, as spreadsheets write it.

The header names the columns, in any order. Each line is one measurement; its unit is in the name of its column
(`duration_ns`, `duration_us`, `duration_ms`, `duration_s`; `bytes_per_s`, `gb_per_s`).

- Calls: `kind`, `micro_batch`, `sequence`, `pass` (forward, backward, recompute), `duration_*`.
- Collectives: `collective`, `num_ranks`, `num_nodes` (1 where left out), `size_bytes`, `duration_*`.
- Copies: `direction`, `bytes_per_s` or `gb_per_s`.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from planner.profiles.errors import NoMeasurements
from planner.profiles.plausible import PASSES
from planner.schema import InvalidDocument, Profile

_NS = {"duration_ns": 1, "duration_us": 10**3, "duration_ms": 10**6, "duration_s": 10**9}
_BYTES = {"bytes_per_s": 1, "gb_per_s": 10**9}
_SUBJECTS = ("kind", "collective", "direction")

Line = tuple[int, Mapping[str, str]]


def read_table(text: str, *, name: str, source: str) -> Profile:
    """Read a table; `source` names it in errors.

    Raises:
        InvalidDocument: a line lacks a column or has a value that is no number.
        NoMeasurements: there is no line.
    """
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    lines: list[Line] = [
        (number, {key: value.strip() for key, value in row.items() if key and value and value.strip()})
        for number, row in enumerate(rows, start=2)
    ]
    lines = [line for line in lines if line[1]]
    if not lines:
        raise NoMeasurements(f"{source} has no lines below its header")
    chosen: dict[str, list[Line]] = {subject: [] for subject in _SUBJECTS}
    for number, row in lines:
        subject = next((column for column in _SUBJECTS if column in row), None)
        if subject is None:
            raise InvalidDocument(f"{source}, line {number}: has none of the columns {', '.join(_SUBJECTS)}")
        chosen[subject].append((number, row))
    return Profile.from_object(
        {
            "name": name,
            "calls": _calls(chosen["kind"], source),
            "collectives": _curves(chosen["collective"], source),
            "copies": [
                {"direction": row["direction"], "bytes_per_s": _scaled(row, _BYTES, f"{source}, line {number}")}
                for number, row in chosen["direction"]
            ],
        },
        source=source,
    )


def _calls(lines: Sequence[Line], source: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for number, row in lines:
        where = f"{source}, line {number}"
        batch, sequence = (_integer(row, column, where) for column in ("micro_batch", "sequence"))
        if row.get("pass") not in PASSES:
            raise InvalidDocument(f"{where}: pass is {row.get('pass')!r}; it must be one of {', '.join(PASSES)}")
        call = {"kind": row["kind"], "micro_batch": batch, "sequence": sequence}
        entry = found.setdefault((row["kind"], batch, sequence), call)
        entry[f"{row['pass']}_ns"] = _scaled(row, _NS, where)
    return list(found.values())


def _curves(lines: Sequence[Line], source: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for number, row in lines:
        where = f"{source}, line {number}"
        ranks = _integer(row, "num_ranks", where)
        nodes = _integer(row, "num_nodes", where) if "num_nodes" in row else 1
        shape = {"collective": row["collective"], "num_ranks": ranks, "num_nodes": nodes, "points": []}
        curve = found.setdefault((row["collective"], ranks, nodes), shape)
        size = _integer(row, "size_bytes", where)
        curve["points"].append({"size_bytes": size, "duration_ns": _scaled(row, _NS, where)})
    return list(found.values())


def _integer(row: Mapping[str, str], column: str, where: str) -> int:
    value = row.get(column, "")
    if not value.isdecimal():
        raise InvalidDocument(f"{where}: {column} is {value!r}; it must be a whole number")
    return int(value)


def _scaled(row: Mapping[str, str], units: Mapping[str, int], where: str) -> int:
    column = next((unit for unit in units if unit in row), None)
    if column is None:
        raise InvalidDocument(f"{where}: has no value; name its column {' or '.join(units)}")
    try:
        return round(float(row[column]) * units[column])
    except (ValueError, OverflowError):
        raise InvalidDocument(f"{where}: {column} is {row[column]!r}; it must be a number") from None
