"""Conditions on decisions: how one program describes every plan of a search at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, order=True)
class Literal:
    """`decision` takes its option number `value`."""

    decision: int
    value: int


Condition = tuple[Literal, ...]
"""All of these hold; the empty condition always does."""
ALWAYS: Condition = ()


def both(first: Condition, second: Condition) -> Condition:
    """Conjunction."""
    return tuple(sorted({*first, *second}))


@dataclass(frozen=True, slots=True)
class Choice(Generic[Value]):
    """A knob: exactly one of its options holds. A knob with one option is fixed."""

    options: tuple[tuple[Value, Condition], ...]

    @classmethod
    def fixed(cls, value: Value) -> "Choice[Value]":
        """A knob that nobody has to decide."""
        return cls(((value, ALWAYS),))

    @classmethod
    def among(cls, decision: int, values: Iterable[Value]) -> "Choice[Value]":
        """The options of `decision`, in order."""
        return cls(tuple((value, (Literal(decision, i),)) for i, value in enumerate(values)))

    def when(self, value: Value) -> Condition | None:
        """Condition under which the knob has this value; None when it never has."""
        for option, condition in self.options:
            if option == value:
                return condition
        return None

    def __iter__(self) -> Iterator[tuple[Value, Condition]]:
        return iter(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A named choice that a search takes; decisions of one family are alike and in execution order."""

    name: str
    family: str
    labels: tuple[str, ...]
