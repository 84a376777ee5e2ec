"""What prefetch depths of single units could gain over those that the search tries.

It tries one depth for all units and, in forward, depths as deep as gathers fit a limit. Small random requests are
narrowed until a few plans are left. Of each, every combination of forward depths (0 to 2) of its units, and every
combination of backward depths (0, 2), is predicted, within budgets between the least and the most that any needs.
Compared are the best that the search tries and the best of all. Run from the repository:
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
from planner.program.step import PrefetchTargets
from planner.program.units import ROOT, Partition
from planner.schema import Decisions, PlanRequest, ShardwrightError
from planner.space.knobs import forward_prefetch, names_of
from planner.space.opened import OpenCandidate
from planner.space.prefetch import BACKWARD_DEPTHS, DEEPEST, FORWARD_DEPTHS, prefetch_targets

MAX_PLANS, MAX_UNITS = 8, 5
KINDS = ("forward", "backward")
SHARES = (0.0, 0.1, 0.3, 0.6)
"""Budgets, from the least that any plan needs (0) to the most (1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """One plan."""

    step_ns: int
    needed_bytes: int
    is_tried: bool
    """It is in the space of the search."""


def variants(kind: str, decisions: Decisions, item: OpenCandidate) -> Iterator[tuple[Decisions, bool]]:
    """A plan with other prefetch lists; and whether the search tries these."""
    parts = item.candidate.partition
    units = range(len(parts.units))
    depths = FORWARD_DEPTHS if kind == "forward" else BACKWARD_DEPTHS
    targets = {depth: prefetch_targets(parts, depth, ahead=kind == "forward") for depth in depths}
    lists = {depth: _lists(parts, own) for depth, own in targets.items()}
    tried = list(lists.values())
    if kind == "forward":
        prefetch = forward_prefetch(item.candidate, item.inputs.sizes, item.costs)
        tried += [_lists(parts, prefetch.targets(DEEPEST, limit)) for limit in prefetch.limits()]
    for chosen in product(depths, repeat=len(units)):
        found = {unit: {f"{kind}_prefetch": lists[depth][unit]} for unit, depth in enumerate(chosen)}
        yield _with(decisions, found), [found[unit][f"{kind}_prefetch"] for unit in units] in tried


def _lists(parts: Partition, targets: PrefetchTargets) -> list[tuple[str, ...]]:
    return [names_of(parts, targets, unit) for unit in range(len(parts.units))]


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
        for variant, is_tried in variants(kind, decisions, item):
            try:
                one = outcomes.of(variant)
            except ShardwrightError:
                continue
            if one.fits_host:
                known.append(Costed(step_ns=one.step_ns, needed_bytes=one.reserved_bytes, is_tried=is_tried))
    return known


def losses(known: Sequence[Costed]) -> Iterator[float]:
    """For each budget by how much the best that the search tries is slower than the best of all."""
    tried = [one for one in known if one.is_tried]
    if not tried:
        return
    least, most = min(one.needed_bytes for one in tried), max(one.needed_bytes for one in tried)
    for share in SHARES:
        budget = least + int(share * (most - least))
        best = min(one.step_ns for one in known if one.needed_bytes <= budget)
        yield min(one.step_ns for one in tried if one.needed_bytes <= budget) / best - 1


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
