"""What a search knows of a region: its bound, and what was tried in it."""

from dataclasses import dataclass, field

from planner.space.opened import OpenCandidate
from planner.space.regions import Region
from planner.space.settings import Setting


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tried:
    """The best decisions known under a setting; the smallest is the best."""

    exceeds: bool
    """They do not keep budget and deadline."""
    value: int
    """What is minimised."""
    step_ns: int
    needed_bytes: int


@dataclass(eq=False, kw_only=True)
class Node:
    """A region, or one setting of it, with what is known about it."""

    region: Region
    settings: tuple[Setting, ...]
    lower_bound: int
    """On what is minimised."""
    stage: int = 0
    """How often its bound was sharpened."""
    relaxed: OpenCandidate | None = None
    tried: dict[Setting, Tried] = field(default_factory=dict)
    """Settings that were looked at."""
    is_finished: bool = False
    """CP-SAT solved its problem to the accepted gap, or nothing in it can improve the best plan."""
    is_split: bool = False
    """Its settings are nodes of their own."""
    is_empty: bool = False
    """No plan of it keeps the budget."""

    @classmethod
    def of(cls, region: Region) -> "Node | None":
        """A region that nothing is known of but its floor; None where nothing in it can be feasible."""
        floor = region.floor
        return None if floor is None else cls(region=region, settings=region.settings, lower_bound=floor)

    @property
    def is_relaxed(self) -> bool:
        """Its problem bounds several settings, and none of them exactly."""
        return len(self.settings) > 1

    def item(self) -> OpenCandidate:
        """The problem that bounds it."""
        if self.relaxed is None:
            is_exact = not (self.is_relaxed or self.region.is_family)
            self.relaxed = self.region.open(self.settings[0]) if is_exact else self.region.relaxed()
        return self.relaxed

    def open(self, setting: Setting) -> OpenCandidate:
        """The problem under one setting."""
        return self.item() if self.settings == (setting,) else self.region.open(setting)

    def forget(self) -> None:
        """Free the problem; it is made again if the node comes back."""
        self.relaxed = None
