"""Statements about modules as lines of Python, those that differ in the number of the block alone as a loop."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_NUMBERED = re.compile(r"((?:[A-Za-z_]\w*\.)*)(\d+)((?:\.\w+)*)", re.ASCII)
_LONGEST_PERIOD = 8
"""Statements that repeat together, for each block: as many as one block is cut into."""
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Path:
    """The path of a module, as a string of Python."""

    path: str

    @property
    def number(self) -> int | None:
        """The first number in the path; None where there is none, or where the path is no plain one."""
        found = _NUMBERED.fullmatch(self.path)
        return int(found[2]) if found else None

    def words(self, base: int | None) -> str:
        """A literal; with the number of a loop's first turn, what stands for the path in every turn."""
        found = _NUMBERED.fullmatch(self.path)
        if base is None or found is None:
            return json.dumps(self.path)
        ahead = int(found[2]) - base
        number = "i" if not ahead else f"i {'+' if ahead > 0 else '-'} {abs(ahead)}"
        return f'f"{found[1]}{{{number}}}{found[3]}"'


Statement = tuple[str | Path, ...]
"""Text, and paths in it."""


def in_loops(statements: Sequence[Statement]) -> Iterator[str]:
    """Lines that run the statements in their order."""
    place = 0
    while place < len(statements):
        period, numbers = max(
            ((period, _turns(statements, place, period)) for period in range(1, _LONGEST_PERIOD + 1)),
            key=lambda found: (len(found[1]) * found[0] if len(found[1]) > 1 else 0, -found[0]),
        )
        if len(numbers) > 1:
            yield f"for i in {_range(numbers)}:"
            for statement in statements[place : place + period]:
                yield _INDENT + _line(statement, numbers[0])
            place += period * len(numbers)
        else:
            yield _line(statements[place], None)
            place += 1


def _turns(statements: Sequence[Statement], place: int, period: int) -> list[int]:
    """Numbers of the blocks of a loop that starts here with so many statements a turn, in even steps."""
    numbers: list[int] = []
    pattern: list[str] | None = None
    for start in range(place, len(statements) - period + 1, period):
        turn = statements[start : start + period]
        number = next((part.number for part in turn[0] if isinstance(part, Path) and part.number is not None), None)
        if number is None:
            break
        found = [_line(statement, number) for statement in turn]
        pattern = pattern or found
        even = len(numbers) < 2 or number - numbers[-1] == numbers[1] - numbers[0]
        if found != pattern or not even or number in numbers:
            break
        numbers.append(number)
    return numbers


def _line(statement: Statement, base: int | None) -> str:
    return "".join(part if isinstance(part, str) else part.words(base) for part in statement)


def _range(numbers: Sequence[int]) -> str:
    first, step = numbers[0], numbers[1] - numbers[0]
    end = numbers[-1] + step
    if step == 1:
        return f"range({end})" if not first else f"range({first}, {end})"
    return f"range({first}, {end}, {step})"
