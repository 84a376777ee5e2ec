"""The scheduling problem: activities on chains, barriers and memory, under finite decisions.

It knows nothing of training. Steps come in one fixed order (issue order). An activity occupies one or more chains
(streams, links), follows the activities that it waits for, and may be present only under a condition on decisions.
Memory is a sequence of changes and touches in pools, conditional likewise. The aim: least makespan of the final
chain with the sum of the pools' peaks within a budget.
"""

from dataclasses import dataclass

Condition = tuple[tuple[int, int], ...]
"""All of `(decision, value)` hold; empty always holds."""


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
    """Step numbers of earlier activities; absent ones do not count."""
    blocks_issuer: bool = False
    """The issuer waits for its end before it goes on."""
    when: Condition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Later activities of `chain` follow activity number `activity`, if that is present."""

    chain: int
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


Step = Activity | Barrier | Change | Touch


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Decisions that are alike, in order; the heuristic sets them by patterns."""

    name: str
    decisions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """See the module docstring."""

    num_values: tuple[int, ...]
    """Options of each decision."""
    families: tuple[Family, ...]
    steps: tuple[Step, ...]
    num_chains: int
    num_pools: int
    final_chain: int
    budget: int | None
    """Bound on the sum of pool peaks; None when there is none."""

    @property
    def num_decisions(self) -> int:
        """Decisions of the problem."""
        return len(self.num_values)


Assignment = tuple[int, ...]
"""The value of each decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an assignment costs."""

    makespan: int
    pool_peaks: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Sum of the pool peaks."""
        return sum(self.pool_peaks)
