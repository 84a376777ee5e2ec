"""Conditions on decisions: how one program describes every plan of a search at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Literal(NamedTuple):
    """`decision` takes its option number `value`."""

    decision: int
    value: int


Condition = tuple[Literal, ...]
"""All of these hold, or, after `ANY`, at least one; the empty condition always does."""
ALWAYS: Condition = ()
ANY = Literal(-1, 0)
"""First in a disjunction; what follows it are literals."""


def both(first: Condition, second: Condition) -> Condition:
    """Conjunction; a disjunction goes with nothing but `ALWAYS`."""
    if not first or not second:
        return first or second
    assert ANY not in (first[0], second[0])
    return tuple(sorted({*first, *second}))


def any_of(conditions: Iterable[Condition]) -> Condition | None:
    """At least one of some conditions, each of one literal or `ALWAYS`; None when there are none."""
    found = list(conditions)
    if ALWAYS in found:
        return ALWAYS
    literals = sorted({literal for condition in found for literal in condition})
    assert len(literals) == len(set(found)), "single literals"
    return (ANY, *literals) if len(literals) > 1 else tuple(literals) if literals else None


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
