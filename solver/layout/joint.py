"""Choosing together what a single buffer takes as given: shard degree, atoms and which tensors share a buffer.

Tensors whose atoms have large common multiples need a large S together and a small one apart. An atom may be any
number of steps (rows) in a range. Fewer ranks pad less, so a degree is lowered only where the padding is more than
what is accepted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from random import Random

from solver.layout.fill import Effort
from solver.layout.flexible import Buffer, FlexibleTensor, JointLayout, JointProblem
from solver.layout.grouping import (
    Group,
    Grouping,
    Members,
    divided,
    exchanges,
    grouping,
    kicked,
    members_by_buffer,
    moves,
    targets,
)
from solver.layout.problem import LayoutProblem, Tensor
from solver.layout.search import solve

EFFORT = 2_000_000
"""Placements over all buffers that are looked at, at one degree."""
EFFORT_OF_A_BUFFER = 10_000
"""Placements for a first look at a buffer; the chosen ones get more."""
EFFORT_OF_A_TENSOR = 40
"""The same for each tensor of it."""
KICKS = 40
"""Times that the best is changed at random and improved again, without gain, before it is taken."""
KICKED = 3
"""Groups that such a change concerns."""

_Cost = tuple[float, int, int, int]


def solve_jointly(problem: JointProblem, effort: int = EFFORT) -> JointLayout:
    """The largest degree with accepted padding, or, where none has it, the one with the least padding.

    At a degree the padding is minimised, then the number of buffers, then atoms are as coarse as they can be. Each
    buffer is proven; which tensors share one is a local search.

    Args:
        problem: tensors and options.
        effort: placements to try at each degree.
    """
    best: JointLayout | None = None
    for num_ranks in sorted(set(problem.rank_options), reverse=True):
        found = _Search(problem, num_ranks, Effort(effort)).run()
        if found.padding_elements * 1_000_000 <= problem.accepted_ppm * found.num_elements:
            return found
        if best is None or found.padding_elements < best.padding_elements:
            best = found
    assert best is not None, "there is at least one degree"
    return best


class _Search:
    """Local search over buffers and atoms at one degree."""

    def __init__(self, problem: JointProblem, num_ranks: int, effort: Effort) -> None:
        self._problem = problem
        self._num_ranks = num_ranks
        self._effort = effort
        self._place = {tensor.name: number for number, tensor in enumerate(problem.tensors)}
        self._families = _families(problem.tensors)
        self._atoms = [members[0].atoms(num_ranks) for members in self._families]
        self._known: dict[Members, Buffer] = {}
        self._costs: dict[Grouping, _Cost] = {}

    def run(self) -> JointLayout:
        best = min((self._descend(start) for start in self._starts()), key=self._cost)
        random, failed = Random(0), 0
        while failed < KICKS and not self._effort.is_spent and self._cost(best)[0] > 0:
            kick = kicked(best, self._atoms, self._problem.max_buffers, random, num_groups=KICKED)
            found = self._descend(kick)
            failed += 1
            if self._cost(found) < self._cost(best):
                best, failed = found, 0
        return JointLayout(num_ranks=self._num_ranks, buffers=tuple(self._polished(best)))

    def _starts(self) -> Iterator[Grouping]:
        """All in one buffer; what may be cut anywhere apart; a buffer for each step; each family alone."""
        steps = [members[0].step_elements for members in self._families]
        starts: tuple[Sequence[int], ...] = (
            [0] * len(steps),
            [int(step > 1) for step in steps],
            [sorted(set(steps)).index(step) for step in steps],
            range(len(steps)),
        )
        finest = [options[-1] for options in self._atoms]
        alone = [self._best_alone(family) for family in range(len(self._families))]
        for buffers in starts:
            if max(buffers) < self._problem.max_buffers:
                for atoms in (finest, alone):
                    yield grouping(
                        Group(family, buffers[family], atoms[family], len(members))
                        for family, members in enumerate(self._families)
                    )

    def _descend(self, groups: Grouping) -> Grouping:
        """The first neighbour with less padding, or else that is better at all, as long as there is one."""
        while better := self._first(groups, 1) or self._first(groups, 4):
            groups = better
        return groups

    def _first(self, groups: Grouping, num_terms: int) -> Grouping | None:
        """The first neighbour with less of the first terms of the cost."""
        cost = self._cost(groups)[:num_terms]
        return next((near for near in self._near(groups) if self._cost(near)[:num_terms] < cost), None)

    def _near(self, groups: Grouping) -> Iterator[Grouping]:
        yield from moves(groups, self._atoms, self._problem.max_buffers)
        buffers = {number: self._buffer(members) for number, members in members_by_buffer(groups).items()}
        for group in groups:
            for target in targets(groups, self._problem.max_buffers):
                if target != group.buffer:
                    for count in self._counts(group, buffers[group.buffer]):
                        yield divided(groups, group, target, count)
        yield from exchanges(groups)

    def _counts(self, group: Group, source: Buffer) -> list[int]:
        """How many of a group to move so that the shards of what they leave can be an atom smaller."""
        elements = self._families[group.family][0].num_elements
        shards = {source.layout.shard_elements - tensor.atom_elements for tensor in source.problem.tensors}
        counts = {-(-(source.problem.num_elements - self._num_ranks * shard) // elements) for shard in shards}
        return sorted(count for count in counts if 0 < count < group.num_tensors)

    def _cost(self, groups: Grouping) -> _Cost:
        if groups not in self._costs:
            self._costs[groups] = self._new_cost(groups)
        return self._costs[groups]

    def _new_cost(self, groups: Grouping) -> _Cost:
        """Padding; buffers; how little the padding is spread; coarse atoms.

        Padding in one buffer rather than in several is a step on the way: there a little less to hold may make the
        shards smaller.
        """
        buffers = members_by_buffer(groups).values()
        if self._effort.is_spent and any(members not in self._known for members in buffers):
            return inf, 0, 0, 0
        padding = [self._buffer(members).padding_elements for members in buffers]
        further = self._problem.elements_per_buffer * (len(buffers) - 1)
        uneven = sum(elements**2 for elements in padding)
        coarseness = sum(group.atom * group.num_tensors for group in groups)
        return sum(padding) + further, len(buffers), -uneven, -coarseness

    def _best_alone(self, family: int) -> int:
        """The atom with which the family pads least in a buffer of its own; the coarsest of these."""
        count = len(self._families[family])
        return min(
            self._atoms[family], key=lambda atom: (self._buffer(((family, atom, count),)).padding_elements, -atom)
        )

    def _buffer(self, members: Members) -> Buffer:
        """The buffer with these members; which ones of a family they are does not matter."""
        if members not in self._known:
            tensors = [
                Tensor(name=tensor.name, num_elements=tensor.num_elements, atom_elements=atom)
                for tensor, atom in _taken(members, [iter(family) for family in self._families])
            ]
            problem = self._layout_problem(sorted(tensors, key=lambda tensor: self._place[tensor.name]))
            given = EFFORT_OF_A_BUFFER + EFFORT_OF_A_TENSOR * len(problem.tensors)
            effort = Effort(given)
            layout = solve(problem, effort)
            self._effort.left -= given - effort.left + len(problem.tensors)
            self._known[members] = Buffer(problem=problem, layout=layout)
        return self._known[members]

    def _polished(self, groups: Grouping) -> Iterator[Buffer]:
        """Buffers with more effort, tensors of their own, and atoms as coarse as the cuts allow."""
        waiting = [iter(family) for family in self._families]
        for members in members_by_buffer(groups).values():
            problem = self._buffer(members).problem
            layout = min(self._buffer(members).layout, solve(problem), key=lambda layout: layout.shard_elements)
            stands_for = _taken(members, [iter(family) for family in self._families])
            own = {
                other.name: tensor
                for (other, _), (tensor, _) in zip(stands_for, _taken(members, waiting), strict=True)
            }
            yield Buffer(
                problem=self._layout_problem(
                    own[tensor.name].coarsest(offset, layout.shard_elements)
                    for offset, tensor in zip(layout.offsets, problem.tensors, strict=True)
                ),
                layout=layout,
            )

    def _layout_problem(self, tensors: Iterable[Tensor]) -> LayoutProblem:
        return LayoutProblem(
            tensors=tuple(tensors),
            num_ranks=self._num_ranks,
            alignment_elements=self._problem.alignment_elements,
        )


def _families(tensors: Sequence[FlexibleTensor]) -> list[list[FlexibleTensor]]:
    found: dict[tuple[int, ...], list[FlexibleTensor]] = {}
    for tensor in tensors:
        size = (tensor.num_elements, tensor.step_elements, tensor.least_steps, tensor.most_steps)
        found.setdefault(size, []).append(tensor)
    return list(found.values())


def _taken(members: Members, waiting: Sequence[Iterator[FlexibleTensor]]) -> Iterator[tuple[FlexibleTensor, int]]:
    """The next tensors of each family, with their atoms."""
    for family, atom, count in members:
        for tensor in islice(waiting[family], count):
            yield tensor, atom
