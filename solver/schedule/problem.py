"""The scheduling problem: activities on chains, barriers and memory, under finite decisions.

It knows nothing of training. Steps come in one fixed order (issue order). An activity occupies one or more chains
(streams, links), follows the activities that it waits for, and may be present only under a condition on decisions.
Memory is a sequence of changes and touches in pools, conditional likewise. Steps form rounds that run one after the
other, each so many times. The aim is the least sum of the rounds' makespans with the pools' peaks, and what else
the decisions take from the budget, within it; or the least memory with the makespans within a deadline.
"""

from dataclasses import dataclass
from enum import Enum, auto

Condition = tuple[tuple[int, int], ...]
"""All of `(decision, value)` hold, or, after `ANY`, at least one of them; empty always holds."""
ANY = (-1, 0)
"""First in a disjunction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Work of `duration` on `chains`, at the earliest `lead` after the issuer reached it.

    The issuer's clock adds `issue` per present activity; none can end before the issuer is through with it.
    """

    chains: tuple[int, ...]
    duration: int
    lead: int = 0
    issue: int = 0
    waits: tuple[int, ...] = ()
    """Numbers, in the round, of earlier activities; absent ones do not count."""
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Later activities of `chain` follow activity number `activity`, if that is present."""

    chain: int
    activity: int
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The issuer waits for the end of activity number `activity`, if that is present, before it goes on."""

    activity: int
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The level of `pool` changes by `amount`."""

    pool: int
    amount: int
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """For a moment, `pool` holds `amount` more than its level."""

    pool: int
    amount: int
    when: Condition = ()


Step = Activity | Barrier | Stop | Change | Touch


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Steps that run `count` times. Clocks and levels start at 0, and the makespan is that of one run."""

    steps: tuple[Step, ...]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Memory beside the pools, taken all the time."""

    amount: int
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Decisions that are alike, in order; the heuristic sets them by patterns."""

    name: str
    decisions: tuple[int, ...]


class Aim(Enum):
    """What is minimised."""

    MAKESPAN = auto()
    MEMORY = auto()
    PEAK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """See the module docstring."""

    num_values: tuple[int, ...]
    """Options of each decision."""
    families: tuple[Family, ...]
    rounds: tuple[Round, ...]
    num_chains: int
    num_pools: int
    final_chain: int
    budget: int | None
    """Bound on the sum of pool peaks and reserves; None when there is none."""
    reserves: tuple[Reserve, ...] = ()
    deadline: int | None = None
    """Bound on the makespan; None when there is none."""
    aim: Aim = Aim.MAKESPAN

    @property
    def num_decisions(self) -> int:
        """Decisions of the problem."""
        return len(self.num_values)

    def value(self, evaluation: "Evaluation") -> int:
        """What is minimised, of an assignment."""
        match self.aim:
            case Aim.MAKESPAN:
                return evaluation.makespan
            case Aim.MEMORY:
                return evaluation.needed
            case Aim.PEAK:
                return evaluation.peak

    def violation(self, evaluation: "Evaluation") -> tuple[int, int]:
        """Memory over the budget and time over the deadline; two zeros are feasible."""
        over = 0 if self.budget is None else max(0, evaluation.needed - self.budget)
        return over, 0 if self.deadline is None else max(0, evaluation.makespan - self.deadline)

    def is_feasible(self, evaluation: "Evaluation") -> bool:
        """Whether budget and deadline are kept."""
        return self.violation(evaluation) == (0, 0)


Assignment = tuple[int, ...]
"""The value of each decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an assignment costs."""

    makespan: int
    """Of all runs of all rounds."""
    pool_peaks: tuple[int, ...]
    """Of each pool the most in any round."""
    reserved: int = 0
    """Memory beside the pools."""

    @property
    def peak(self) -> int:
        """Sum of the pool peaks."""
        return sum(self.pool_peaks)

    @property
    def needed(self) -> int:
        """What the budget bounds."""
        return self.peak + self.reserved


def holds(when: Condition, assignment: Assignment) -> bool:
    """Whether a condition holds."""
    if when[:1] == (ANY,):
        return any(assignment[decision] == value for decision, value in when[1:])
    return all(assignment[decision] == value for decision, value in when)
