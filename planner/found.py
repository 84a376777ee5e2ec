"""What a search says: how far it is while it runs, and what it found."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.nodes import Node
from planner.space.opened import OpenCandidate
from solver.schedule.problem import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a running search."""

    elapsed_s: float
    message: str
    incumbent_ns: int | None = None
    """Best step time so far, where that is minimised."""
    bound_ns: int | None = None
    """No plan is faster than this; None until every global choice is known."""
    incumbent_bytes: int | None = None
    """Least memory so far, where that is minimised."""
    bound_bytes: int | None = None
    """No plan needs less."""


OnProgress = Callable[[Progress], None]
OnBetter = Callable[[int, Callable[[], "Found"]], None]
"""Told what the best plan so far reaches; calling its second argument gives the state of the search, unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Outcome of a search."""

    best: OpenCandidate | None
    assignment: Assignment | None
    lower_bound: int
    """On what is minimised: step time in ns, or memory in bytes."""
    nodes: tuple[Node, ...]
    """All regions, those that cannot fit left out."""
    num_regions: int
    num_pruned: int
    """Regions discarded by their floor alone."""
    deterministic_time: float
    wall_clock_struck: bool
    interrupted: bool
