"""What holds for every assignment, found without search: a relaxation in which optional activities are absent."""

from solver.schedule.problem import Activity, Barrier, Problem


class StaticBounds:
    """Earliest times when only unconditional activities run."""

    def __init__(self, problem: Problem) -> None:
        self._ahead: set[int] = set()
        clocks = [0] * problem.num_chains
        ends: dict[int, int] = {}
        latest_issue = earliest_issue = 0
        for number, step in enumerate(problem.steps):
            if isinstance(step, Activity):
                start = max([clocks[chain] for chain in step.chains] + [ends.get(wait, 0) for wait in step.waits])
                if latest_issue + step.lead <= start and latest_issue + step.issue <= start + step.duration:
                    self._ahead.add(number)
                latest_issue += step.issue
                if step.when:
                    continue
                end = max(start, earliest_issue + step.lead) + step.duration
                earliest_issue += step.issue
                end = max(end, earliest_issue)
                ends[number] = end
                for chain in step.chains:
                    clocks[chain] = end
            elif isinstance(step, Barrier) and not step.when and step.activity in ends:
                clocks[step.chain] = max(clocks[step.chain], ends[step.activity])
        self.makespan = max(clocks[problem.final_chain], earliest_issue)
        """No assignment has a smaller makespan."""

    def issuer_is_ahead(self, number: int) -> bool:
        """Whether the issuer reaches activity `number` before it could start anyway, whatever is decided."""
        return number in self._ahead
