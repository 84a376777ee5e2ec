"""What prefetch depths of single units could gain, where the search has one depth for all of them.

Small random requests are narrowed until a few plans are left. Of each, every combination of forward depths (0 to
2) of its units, and every combination of backward depths (0, 2), is predicted, within budgets between the least and
the most that any needs. Compared are the best with one depth and the best of all. Run from the repository:
`python -m benchmarks.unit_choices`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from benchmarks.search_checks import Outcomes, all_regions, assignments
from benchmarks.search_choices import narrowed
from benchmarks.search_requests import random_request
from planner.program.units import ROOT, Partition
from planner.schema import Decisions, PlanRequest, ShardwrightError
from planner.space.candidate import BACKWARD_DEPTHS, FORWARD_DEPTHS, Candidate
from planner.space.knobs import prefetch_targets
from planner.space.opened import OpenCandidate

MAX_PLANS, MAX_UNITS = 8, 5
KINDS = ("forward", "backward")
SHARES = (0.0, 0.1, 0.3, 0.6)
"""Budgets, from the least that any plan needs (0) to the most (1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """One plan."""

    step_ns: int
    needed_bytes: int
    is_alike: bool
    """It is in the space of the search."""


def variants(kind: str, decisions: Decisions, candidate: Candidate) -> Iterator[tuple[Decisions, bool]]:
    """A plan with other prefetch lists; and whether all units have the same depth."""
    parts = candidate.partition
    units = range(len(parts.units))
    depths = FORWARD_DEPTHS if kind == "forward" else BACKWARD_DEPTHS
    lists = {depth: _lists(parts, depth, ahead=kind == "forward") for depth in depths}
    for chosen in product(depths, repeat=len(units)):
        found = {unit: {f"{kind}_prefetch": lists[depth][unit]} for unit, depth in enumerate(chosen)}
        names = [found[unit][f"{kind}_prefetch"] for unit in units]
        yield _with(decisions, found), any(names == lists[depth] for depth in depths)


def _lists(parts: Partition, depth: int, *, ahead: bool) -> list[tuple[str, ...]]:
    targets = prefetch_targets(parts, depth, ahead=ahead) or ((),) * len(parts.units)
    return [tuple(parts.units[target].modules[0] for target in own) for own in targets]


def _with(decisions: Decisions, changes: dict[int, dict[str, object]]) -> Decisions:
    """Units are listed bottom-up, the root last."""
    order = [*range(1, len(decisions.units)), ROOT]
    units = [unit.model_copy(update=changes[number]) for number, unit in zip(order, decisions.units, strict=True)]
    return decisions.model_copy(update={"units": tuple(units)})


def plans(request: PlanRequest) -> Iterator[tuple[OpenCandidate, Decisions]]:
    """All of a request, those that differ in the runtime's settings alone only once."""
    for region in all_regions(request):
        item = region.open(region.settings[0])
        if not any(item.candidate.on_host) and len(item.candidate.partition.units) <= MAX_UNITS:
            for assignment in assignments(item):
                yield item, item.unpack(request, assignment)


def costed(kind: str, request: PlanRequest, found: Sequence[tuple[OpenCandidate, Decisions]]) -> list[Costed]:
    """Every variant of every plan that the host holds."""
    outcomes, known = Outcomes(request), []
    for item, decisions in found:
        for variant, is_alike in variants(kind, decisions, item.candidate):
            try:
                one = outcomes.of(variant)
            except ShardwrightError:
                continue
            if one.fits_host:
                known.append(Costed(step_ns=one.step_ns, needed_bytes=one.reserved_bytes, is_alike=is_alike))
    return known


def losses(known: Sequence[Costed]) -> Iterator[float]:
    """For each budget by how much the best of all units alike is slower than the best of all."""
    alike = [one for one in known if one.is_alike]
    if not alike:
        return
    least, most = min(one.needed_bytes for one in alike), max(one.needed_bytes for one in alike)
    for share in SHARES:
        budget = least + int(share * (most - least))
        best = min(one.step_ns for one in known if one.needed_bytes <= budget)
        yield min(one.step_ns for one in alike if one.needed_bytes <= budget) / best - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in arguments.kinds}
    for seed in range(arguments.first, arguments.first + arguments.requests):
        request = random_request(seed).model_copy(update={"client_features": None})
        some = list(plans(narrowed(request, Random(seed), max_plans=4 * MAX_PLANS)))[:MAX_PLANS]
        for kind, known in found.items():
            known += losses(costed(kind, request, some))
    for kind, known in found.items():
        slower = sorted(loss for loss in known if loss > 0)
        most, mean = max(slower, default=0.0), sum(slower) / max(1, len(known))
        print(
            f"{kind}: {len(known)} budgets, {len(slower)} with a faster plan; at most {most:.2%}, mean {mean:.3%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
