"""From programs with open knobs to the solver's problem: names become numbers, buffers become level changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.program.choices import Condition, Decision, both
from planner.program.events import Allocate, Free, HostWait, Link, Operation, Program, Stream, Touch, Wait
from solver.schedule.problem import Activity, Aim, Barrier, Change, Family, Problem, Reserve, Round, Step, Stop
from solver.schedule.problem import Touch as SolverTouch

_CHAINS = {name: number for number, name in enumerate([*Stream, *Link])}
_POOLS = {name: number for number, name in enumerate(Stream)}
Runs = Sequence[tuple[Program, int]]
"""Micro-batches that differ, in order, each with how many there are in a step."""


def problem_of(
    programs: Runs,
    decisions: Sequence[Decision],
    *,
    aim: Aim = Aim.MAKESPAN,
    budget_bytes: int | None,
    deadline_ns: int | None = None,
    reserves: tuple[Reserve, ...] = (),
) -> Problem:
    """The least time, or memory, of a step's micro-batches over their decisions, within budget and deadline."""
    families: dict[str, list[int]] = {}
    for number, decision in enumerate(decisions):
        families.setdefault(decision.family, []).append(number)
    return Problem(
        num_values=tuple(len(decision.labels) for decision in decisions),
        families=tuple(Family(name=name, decisions=tuple(members)) for name, members in families.items()),
        rounds=tuple(Round(steps=tuple(_steps(program)), count=num) for program, num in programs),
        num_chains=len(_CHAINS),
        num_pools=len(_POOLS),
        final_chain=_CHAINS[Stream.COMPUTE],
        budget=budget_bytes,
        reserves=reserves,
        deadline=deadline_ns,
        aim=aim,
    )


def _steps(program: Program) -> list[Step]:
    steps: list[Step] = []
    numbers: dict[int, int] = {}
    alive: dict[str, list[_Part]] = {}
    for index, event in enumerate(program.events):
        match event:
            case Operation():
                numbers[index] = len(steps)
                steps.append(_activity(event, program.launch_ns, numbers))
                if event.host_waits:
                    steps.append(Stop(activity=numbers[index], when=event.when))
            case Wait():
                chain, activity = _CHAINS[event.stream], numbers[event.operation]
                steps.append(Barrier(chain=chain, activity=activity, when=event.when))
            case HostWait():
                steps.append(Stop(activity=numbers[event.operation], when=event.when))
            case Allocate():
                part = _Part(_POOLS[event.stream], event.size_bytes, event.when)
                alive.setdefault(event.buffer, []).append(part)
                steps.append(part.change())
            case Free():
                _free(event, alive, steps)
            case Touch():
                pool = _POOLS[Stream.COMPUTE]
                steps.append(SolverTouch(pool=pool, amount=event.size_bytes, when=event.when))
    return steps


def _free(event: Free, alive: dict[str, list["_Part"]], steps: list[Step]) -> None:
    if not event.when:
        steps.extend(part.negated(()).change() for part in alive.pop(event.buffer, []))
        return
    parts = [part.negated(event.when) for part in alive.get(event.buffer, [])]
    parts = [part for part in parts if not _contradicts(part.when)]
    alive[event.buffer] = [*alive.get(event.buffer, []), *parts]
    steps.extend(part.change() for part in parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """Signed bytes of a buffer under a condition; what is alive is the sum of its parts."""

    pool: int
    amount: int
    when: Condition

    def negated(self, when: Condition) -> "_Part":
        return _Part(self.pool, -self.amount, both(self.when, when))

    def change(self) -> Change:
        return Change(pool=self.pool, amount=self.amount, when=self.when)


def _contradicts(when: Condition) -> bool:
    return len({literal.decision for literal in when}) < len(when)


def _activity(event: Operation, launch_ns: int, numbers: dict[int, int]) -> Activity:
    chains = (_CHAINS[event.stream],) if event.link is None else (_CHAINS[event.stream], _CHAINS[event.link])
    return Activity(
        chains=chains,
        duration=event.duration_ns,
        lead=launch_ns if event.launches else 0,
        issue=event.launches * launch_ns,
        waits=tuple(numbers[wait] for wait in event.waits),
        when=event.when,
    )
