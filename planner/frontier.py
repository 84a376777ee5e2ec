"""What a search has not ruled out: regions by their bounds, families of which single members come first."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from planner.incumbent import Incumbent
from planner.nodes import Node


@dataclass(slots=True, kw_only=True)
class Frontier:
    """All nodes of a search, and the queue of those that may hold a better plan than the incumbent."""

    incumbent: Incumbent
    nodes: list[Node] = field(default_factory=list)
    is_counted: bool = False
    """All regions are known; before, nothing bounds the step."""
    num_choices: int = 0
    """Global choices that the listed regions stand for."""
    families: list[Node] = field(default_factory=list)
    """Those of which samples are looked at before all of their members are; not in the queue yet."""
    _queue: list[tuple[int, int, Node]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _known: set[object] = field(default_factory=set)
    """Keys of the regions that are nodes."""

    def is_new(self, node: Node) -> bool:
        """Whether its region is no node yet."""
        return node.region.key not in self._known

    def add(self, node: Node) -> None:
        """One more node, which `push` puts in the queue."""
        self._known.add(node.region.key)
        self.nodes.append(node)

    def push(self, node: Node) -> None:
        """Queue a node that may hold something better, and free the problem of another."""
        if self.is_open(node):
            heappush(self._queue, (node.lower_bound, next(self._order), node))
        else:
            node.forget()

    def pop(self) -> Node | None:
        """The open node with the lowest bound."""
        while self._queue:
            _, _, node = heappop(self._queue)
            if self.is_open(node):
                return node
            node.forget()
        return None

    def push_families(self) -> None:
        """Queue the families."""
        families, self.families = self.families, []
        for node in families:
            self.push(node)

    def clear(self) -> None:
        """Nothing more is looked at; bounds stay."""
        self._queue.clear()
        self.families.clear()

    def is_open(self, node: Node) -> bool:
        """Whether it may hold a better plan, as far as is known."""
        return not (node.is_finished or node.is_empty) and self.may_improve(node)

    def may_improve(self, node: Node) -> bool:
        """Whether its bound leaves room for a plan that is better by enough to matter."""
        target = self.incumbent.target()
        return target is None or node.lower_bound <= target

    def split(self, node: Node) -> list[Node]:
        """The settings of a relaxed node as nodes of their own, first those that take the least time."""
        node.is_split = True
        node.forget()
        settings = sorted(node.settings, key=lambda one: (one.reach, one.reduce_buffers), reverse=True)
        children = [Node(region=node.region, settings=(one,), lower_bound=node.lower_bound) for one in settings]
        self.nodes.extend(children)
        return children

    def part(self, family: Node) -> None:
        """Queue the halves of a family as nodes of their own."""
        family.is_split = True
        family.forget()
        for region in family.region.parts():
            half = Node.of(region)
            if half is not None and self.is_new(half):
                half.lower_bound = max(half.lower_bound, family.lower_bound)
                self.add(half)
                self.push(half)

    def bound(self) -> int:
        """No plan has less than the least bound of all nodes, or than the best plan where that has less."""
        bounds = [node.lower_bound for node in self.nodes if not (node.is_split or node.is_empty)]
        known = bounds if self.incumbent.value is None else [*bounds, self.incumbent.value]
        return min(known, default=0)

    def num_pruned(self) -> int:
        """Global choices that were never looked at and need not be."""
        whole = [node for node in self.nodes if node.settings == node.region.settings]
        looked_at = sum(
            node.region.num_choices
            for node in whole
            if (node.stage and not node.region.is_family) or (self.is_open(node) and not node.is_split)
        )
        return max(0, self.num_choices - looked_at)
