"""Which units are off the device: families of sets of units, split by the search until one set is left.

Units of one size are alike, and only how many of them are on the host is decided: they go there in an order that
spreads any number of them evenly, later ones first. Where a model has few units each is a class of its own.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from math import prod

from planner.program.units import ROOT, Partition
from planner.schema import PlanRequest, StateTier
from planner.space.fixed import allowed

MAX_EACH = 5
"""So many units are each decided on their own, in every combination."""
NARROW = 16
"""Families whose sets differ in less than one part of so many of the parameters are nearly alike."""
FEW_SETS = 3
"""So many are looked at one by one."""
SHARES = (8, 6, 4, 2, 1)
"""Eighths of each class, of which a family gives a plan to begin with."""


class Moved(StrEnum):
    """What leaves the device; the value is what a fixed choice of `optimizer_offload` calls it."""

    UNITS = "none"
    """Shards, gradients and optimizer state of units, to the host."""
    STATE_TO_HOST = "host"
    """Optimizer state alone."""
    STATE_TO_NVME = "nvme"

    @property
    def tier(self) -> StateTier:
        """Where it goes."""
        return StateTier.NVME if self is Moved.STATE_TO_NVME else StateTier.HOST

    @property
    def words(self) -> str:
        """For people, around the number of units."""
        place = "on NVMe" if self is Moved.STATE_TO_NVME else "in host memory"
        return f"{{}} {place}" if self is Moved.UNITS else f"optimizer state of {{}} {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """Units that are alike, of which the search decides how many are on the host."""

    order: tuple[int, ...]
    """Those that go there first first."""
    weight: int
    """Parameters of each."""


@dataclass(frozen=True, slots=True)
class Offload:
    """All sets with a number of units of each class between two bounds."""

    classes: tuple[Class, ...] = ()
    counts: tuple[tuple[int, int], ...] = ()
    """For each class the least and the most units."""
    moved: Moved = Moved.UNITS

    @property
    def least(self) -> frozenset[int]:
        """Units that every set has."""
        return self._units(0)

    @property
    def most(self) -> frozenset[int]:
        """Units that some set has."""
        return self._units(1)

    def _units(self, end: int) -> frozenset[int]:
        pairs = zip(self.classes, self.counts, strict=True)
        return frozenset(unit for one, count in pairs for unit in one.order[: count[end]])

    @property
    def is_one(self) -> bool:
        """There is one set only."""
        return all(low == high for low, high in self.counts)

    @property
    def is_narrow(self) -> bool:
        """It has more than a few sets, and these are nearly alike."""
        pairs = list(zip(self.classes, self.counts, strict=True))
        open_ = sum(one.weight * (high - low) for one, (low, high) in pairs)
        return self.num_sets > FEW_SETS and open_ * NARROW < sum(one.weight * len(one.order) for one, _ in pairs)

    @property
    def num_sets(self) -> int:
        """Sets that have any unit."""
        return prod(high - low + 1 for low, high in self.counts) - (not self.least)

    def halves(self) -> Iterator["Offload"]:
        """Two families with all sets between them, split where most parameters are undecided; none is empty."""
        widths = [
            (one.weight * (high - low), high - low)
            for one, (low, high) in zip(self.classes, self.counts, strict=True)
        ]
        widest = max(range(len(widths)), key=lambda index: widths[index])
        low, high = self.counts[widest]
        middle = (low + high) // 2
        for bounds in ((middle + 1, high), (low, middle)):
            half = replace(self, counts=(*self.counts[:widest], bounds, *self.counts[widest + 1 :]))
            if half.most:
                yield half

    @property
    def num_even(self) -> int:
        """Units that are open in the largest class."""
        return max(high - low for low, high in self.counts)

    def evenly(self, num: int) -> "Offload":
        """One set, with so many of the open units of the largest class, and as large a share of the others; of
        classes with a single unit none that need not be in it.
        """
        counts = [
            low if len(one.order) == 1 else low + (high - low) * num // self.num_even
            for one, (low, high) in zip(self.classes, self.counts, strict=True)
        ]
        return replace(self, counts=tuple((count, count) for count in counts))

    def samples(self) -> Iterator["Offload"]:
        """Single sets of it, those that free most first: all where they are few, else shares of the larger classes,
        with all that is in a class of its own or with nothing of that.
        """
        few = self.num_sets < 2**MAX_EACH
        choices = self._every_count() if few else dict.fromkeys(self._shares())
        for counts in sorted(choices, key=self._parameters, reverse=True):
            if any(counts):
                yield replace(self, counts=tuple((count, count) for count in counts))

    def _every_count(self) -> Iterator[tuple[int, ...]]:
        return product(*(range(low, high + 1) for low, high in self.counts))

    def _shares(self) -> Iterator[tuple[int, ...]]:
        for share, others in product(SHARES, (1, 0)):
            yield tuple(
                max(low, min(high, others if len(one.order) == 1 else len(one.order) * share // SHARES[0]))
                for one, (low, high) in zip(self.classes, self.counts, strict=True)
            )

    def _parameters(self, counts: tuple[int, ...]) -> int:
        return sum(one.weight * count for one, count in zip(self.classes, counts, strict=True))

    def words(self, num_units: int) -> str:
        """For people."""
        if not self.most:
            return ""
        num = len(self.most)
        count = f"{'all' if num == num_units else num}" if self.is_one else f"{len(self.least)} to {num}"
        return self.moved.words.format(f"{count} of {num_units} units")


ON_DEVICE = Offload()


def knob_of(parts: Partition, unit: int, moved: Moved = Moved.UNITS) -> str:
    """What a fixed choice calls it: with a value of true or false, of `optimizer_offload` those of `Moved`."""
    module = "root" if unit == ROOT else parts.units[unit].modules[0]
    return f"{module}.offload" if moved is Moved.UNITS else f"{module}.optimizer_offload"


def offloads(request: PlanRequest, parts: Partition, moved: Moved) -> Offload | None:
    """All sets of units that the fixed choices allow, but for the empty one; None where they allow none."""
    units = [unit for unit, one in enumerate(parts.units) if one.parameters]
    of_units = moved is Moved.UNITS
    others = Moved.STATE_TO_HOST if of_units else Moved.UNITS
    yes, no, other = (True, False, "none") if of_units else (moved.value, "none", False)
    may = {unit for unit in units if allowed(request, {knob_of(parts, unit, moved): yes})}
    must = {unit for unit in units if not allowed(request, {knob_of(parts, unit, moved): no})}
    if not allowed(request, {"offload": "some"} if of_units else {"optimizer_offload": moved.value}):
        must = set(units)
    if (
        not may
        or not must <= may
        or not all(allowed(request, {knob_of(parts, unit, others): other}) for unit in units)
    ):
        return None
    classes, counts = [], []
    for one in _classes(parts, units):
        taken = [unit for unit in one.order if unit in must]
        open_ = [unit for unit in one.order if unit in may - must]
        classes.append(replace(one, order=(*taken, *open_)))
        counts.append((len(taken), len(taken) + len(open_)))
    return Offload(tuple(classes), tuple(counts), moved)


def may_stay(request: PlanRequest, parts: Partition) -> bool:
    """Whether the fixed choices let every unit be on the device with all that it has."""
    return all(
        allowed(
            request, {knob_of(parts, unit, Moved.UNITS): False, knob_of(parts, unit, Moved.STATE_TO_HOST): "none"}
        )
        for unit, one in enumerate(parts.units)
        if one.parameters
    )


def _classes(parts: Partition, units: list[int]) -> Iterator[Class]:
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for unit in units:
        size = sum(parameter.num_elements for _, parameter in parts.units[unit].parameters)
        alike[size, unit if len(units) <= MAX_EACH or unit == ROOT else -1].append(unit)
    for (size, _), members in alike.items():
        yield Class(order=tuple(members[place] for place in _spread(len(members))), weight=size)


def _spread(num: int) -> list[int]:
    """Places 0 to `num - 1`, the last first, so that any number of the first of them is spread evenly."""
    bits = max(1, (num - 1).bit_length())
    return sorted(range(num), key=lambda place: int(f"{num - 1 - place:0{bits}b}"[::-1], 2))
