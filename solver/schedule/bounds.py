"""What holds for every assignment, found without search: a relaxation in which optional activities are absent."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from solver.schedule.problem import Activity, Barrier, Step, Stop

_NEVER = -(2**62)
MAX_VIEWS = 8
"""With more stops of the issuer, it is never taken to be ahead."""


class StaticBounds:
    """Earliest times of a round when only unconditional activities run, and where the issuer cannot matter."""

    def __init__(self, steps: Sequence[Step], final_chain: int) -> None:
        clocks = _Clocks(start=0)
        views = [clocks]
        """Times from the beginning, and from the end of each activity that the issuer waited for."""
        self._ahead: set[int] = set()
        for number, step in enumerate(steps):
            match step:
                case Activity():
                    if len(views) <= MAX_VIEWS and all(view.issuer_is_ahead(step) for view in views):
                        self._ahead.add(number)
                    for view in views[:MAX_VIEWS]:
                        view.run(number, step)
                case Barrier() if not step.when:
                    for view in views[:MAX_VIEWS]:
                        view.wait(step)
                case Stop():
                    activity = steps[step.activity]
                    assert isinstance(activity, Activity)
                    views.append(_Clocks(start=_NEVER, chains=dict.fromkeys(activity.chains, 0)))
        self.makespan = max(clocks.chains.get(final_chain, 0), clocks.earliest_issue)
        """No assignment has a smaller one."""

    def issuer_is_ahead(self, number: int) -> bool:
        """Whether the issuer reaches activity `number` before it could start anyway, whatever is decided."""
        return number in self._ahead


@dataclass(slots=True)
class _Clocks:
    """Lower bounds on chain clocks, and an upper bound on how much was issued, both from the same origin."""

    start: int
    chains: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    latest_issue: int = 0
    earliest_issue: int = 0

    def _earliest(self, step: Activity) -> int:
        return max(
            [self.chains.get(chain, self.start) for chain in step.chains]
            + [self.ends.get(wait, self.start) for wait in step.waits]
        )

    def issuer_is_ahead(self, step: Activity) -> bool:
        start = self._earliest(step)
        return self.latest_issue + step.lead <= start and self.latest_issue + step.issue <= start + step.duration

    def run(self, number: int, step: Activity) -> None:
        self.latest_issue += step.issue
        if step.when:
            return
        end = max(self._earliest(step), self.earliest_issue + step.lead) + step.duration
        self.earliest_issue += step.issue
        end = max(end, self.earliest_issue)
        self.ends[number] = end
        for chain in step.chains:
            self.chains[chain] = end

    def wait(self, step: Barrier) -> None:
        if step.activity in self.ends:
            known = self.chains.get(step.chain, self.start)
            self.chains[step.chain] = max(known, self.ends[step.activity])
