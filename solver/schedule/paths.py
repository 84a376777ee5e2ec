"""Rows `makespan of a round >= length of a path`, for paths that are there under every assignment.

A path follows a chain past everything on it, waits for an activity that no assignment leaves out, follows the
issuer, or jumps from one such activity to another by a cut (`solver.schedule.cuts`), which counts the longer of
several ways between the two. Optional activities on the way add their duration where they are present; what only
they join is no path. From the issuer a path may go on to an optional activity of a chain: where that is absent, the
next one on the chain is issued later still. The longest path at an assignment goes from stream to stream as the
schedule does, where a window of one chain cannot.
"""

from collections import defaultdict
from typing import NamedTuple

from solver.schedule.cuts import Cut, path_cuts
from solver.schedule.problem import Activity, Assignment, Barrier, Condition, Round, Stop, holds


class _Point(NamedTuple):
    """Where a path has come to."""

    time: int
    link: int
    """Number of the link that it came by."""


_BEGINNING = _Point(0, -1)


class LongestPaths:
    """Of one round."""

    def __init__(self, one: Round, final_chain: int, num_chains: int) -> None:
        self._round, self._final_chain, self._num_chains = one, final_chain, num_chains
        self._cuts: dict[int, list[Cut]] = defaultdict(list)
        """By the activity that they end at."""
        for cut in path_cuts(one.steps):
            if all(len(when) == 1 for when, _ in cut.terms):
                self._cuts[cut.later].append(cut)

    def longest(self, assignment: Assignment) -> dict[Condition, int]:
        """Lengths by condition of the longest path at an assignment; never more than the makespan at any other."""
        return _Walk(assignment, self._cuts).lengths(self._round, self._final_chain, self._num_chains)


class _Walk:
    """Longest paths to each point at one assignment, step by step."""

    def __init__(self, assignment: Assignment, cuts: dict[int, list[Cut]]) -> None:
        self._assignment, self._cuts = assignment, cuts
        self._present: dict[Condition, bool] = {(): True}
        """Conditions of several literals never hold here, which makes paths shorter at the most."""
        self._links: list[tuple[int, Condition, int]] = []
        """(link before, condition, length)."""
        self._ends: dict[int, _Point] = {}

    def lengths(self, one: Round, final_chain: int, num_chains: int) -> dict[Condition, int]:
        chains, ends, issued = [_BEGINNING] * num_chains, self._ends, _BEGINNING
        for number, step in enumerate(one.steps):
            match step:
                case Activity() if not step.when:
                    before = [self._to(issued, (), step.lead), *(chains[chain] for chain in step.chains)]
                    start = max([*before, *(ends[wait] for wait in step.waits if wait in ends)])
                    issued = self._to(issued, (), step.issue)
                    end = self._by_cut(number, max(self._to(start, (), step.duration), issued))
                    ends[number] = end
                    for chain in step.chains:
                        chains[chain] = end
                case Activity() if len(step.when) == 1:
                    counts, issued_before = self._holds(step.when), issued
                    issued = self._to(issued, step.when, step.issue, counts=counts)
                    for chain in step.chains:
                        begun = max(chains[chain], issued_before)
                        chains[chain] = self._to(begun, step.when, step.duration, counts=counts)
                case Barrier() if not step.when and step.activity in ends:
                    chains[step.chain] = max(chains[step.chain], ends[step.activity])
                case Stop() if not step.when and step.activity in ends:
                    issued = max(issued, ends[step.activity])
                case _:
                    pass
        return self._back_from(max(chains[final_chain], issued))

    def _by_cut(self, number: int, end: _Point) -> _Point:
        """The end of an activity, by the best cut where that is later."""
        best, latest = None, end.time
        for cut in self._cuts.get(number, ()):
            time = self._ends[cut.earlier].time + cut.length
            time += sum(extra for when, extra in cut.terms if self._holds(when))
            if time > latest:
                best, latest = cut, time
        if best is None:
            return end
        end = self._to(self._ends[best.earlier], (), best.length)
        for when, extra in best.terms:
            end = self._to(end, when, extra, counts=self._holds(when))
        return end

    def _holds(self, when: Condition) -> bool:
        if when not in self._present:
            self._present[when] = len(when) == 1 and holds(when, self._assignment)
        return self._present[when]

    def _to(self, point: _Point, when: Condition, length: int, *, counts: bool = True) -> _Point:
        """A link on; what a cut has for a condition that does not hold is part of the row all the same."""
        if not length:
            return point
        self._links.append((point.link, when, length))
        return _Point(point.time + length * counts, len(self._links) - 1)

    def _back_from(self, point: _Point) -> dict[Condition, int]:
        found: dict[Condition, int] = defaultdict(int)
        link = point.link
        while link >= 0:
            link, when, length = self._links[link]
            found[when] += length
        return found
