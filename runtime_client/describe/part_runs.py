"""Traces one step of splitting: blocks into their children, or children into theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.schema.model import CallKind, CallRole, Region, TracePoint
from runtime_client.describe.calls import CallTrace
from runtime_client.describe.errors import DifferentTraces
from runtime_client.describe.fit import Fitter, PointSet, without_dominated
from runtime_client.describe.frontier import FrontierModule
from runtime_client.describe.nesting import nest
from runtime_client.describe.part_ledger import Ownership, PartLedgers, part_ledgers, whole_calls
from runtime_client.describe.point import PointTrace, liveness_of, point_call
from runtime_client.describe.recomputation import with_recomputation
from runtime_client.describe.run import RunTrace, Subject, run
from runtime_client.describe.split import Split, SplitRule, role_of_part, split_frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a call: which call it is after the step of splitting, its path and what it does."""

    index: int
    path: str
    kind: CallKind


Parts = Mapping[int, tuple[Part, ...]]
"""By index of the call, its parts in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCalls:
    """Calls before a step of splitting.

    Attributes:
        frontier: what they are calls of.
        ownership: what they keep.
        regions: at each point, their regions by index of the call; known of those that may be split.
    """

    frontier: tuple[FrontierModule, ...]
    ownership: Ownership
    regions: tuple[Mapping[int, tuple[Region, ...]], ...]

    @classmethod
    def of(cls, subject: Subject, traces: Sequence[PointTrace]) -> "WholeCalls":
        """The calls of a model as they were traced at each point."""
        return cls(
            frontier=subject.frontier,
            ownership=whole_calls(traces[0]),
            regions=tuple({index: call.kind.regions for index, call in enumerate(trace.calls)} for trace in traces),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What a step of splitting gives: the calls after it, and the parts of each call that was split."""

    calls: WholeCalls
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtPoint:
    ownership: Ownership
    parts: Parts
    has_full: bool


def trace_depth(
    subject: Subject,
    whole: WholeCalls,
    point_set: PointSet,
    skipped: frozenset[str],
    rule: SplitRule,
    depth: int,
) -> Depth | None:
    """Split calls and trace their parts; None where a rule splits none of them.

    Raises:
        NotDescribable: the parts do other things than the blocks did.
    """
    split = split_frontier(whole.frontier, rule, depth, skipped=skipped)
    if not split.modules - skipped:
        return None
    finer = replace(subject, frontier=split.frontier)
    at_points: list[_AtPoint] = []
    for number, point in enumerate(point_set.points):
        plain = run(finer, point, checkpointed=False, skipped=skipped)
        full = None
        if not at_points or at_points[0].has_full:
            full = _checkpointed(finer, point, skipped, plain)
            if full is None and at_points:
                raise DifferentTraces(
                    "with the children of its blocks checkpointed the model takes another way at micro-batch "
                    f"{point.micro_batch} and sequence {point.sequence}: avoid branches on sizes"
                )
        at_points.append(_at_point(whole, number, split, plain, full))
    calls = WholeCalls(
        frontier=split.frontier,
        ownership=at_points[0].ownership,
        regions=tuple(
            {part.index: part.kind.regions for parts in at_point.parts.values() for part in parts}
            for at_point in at_points
        ),
    )
    return Depth(calls=calls, parts=_fitted([at_point.parts for at_point in at_points], Fitter(point_set)))


def _checkpointed(finer: Subject, point: TracePoint, skipped: frozenset[str], plain: RunTrace) -> RunTrace | None:
    """A run with all parts checkpointed; None where the model takes another way then."""
    try:
        full = run(finer, point, checkpointed=True, skipped=skipped)
    except DifferentTraces:
        return None
    return full if [call.path for call in full.calls] == [call.path for call in plain.calls] else None


def _at_point(whole: WholeCalls, number: int, split: Split, plain: RunTrace, full: RunTrace | None) -> _AtPoint:
    nesting = nest(whole.ownership.paths, split.modules, plain.calls)
    ledgers = part_ledgers(whole.ownership, nesting, plain, full)
    items = {item.path: item for item in split.frontier}
    parts: dict[int, tuple[Part, ...]] = {}
    for outer, inner in enumerate(nesting.inner):
        calls = [plain.calls[index] for index in inner if ledgers.present[index]]
        if whole.ownership.paths[outer] in split.modules and calls:
            kinds = [_kind(ledgers, call, full, items[call.path]) for call in calls]
            parts[outer] = tuple(
                Part(index=call.index, path=call.path, kind=kind)
                for call, kind in zip(calls, with_recomputation(whole.regions[number][outer], kinds), strict=True)
            )
    return _AtPoint(ownership=ledgers.ownership, parts=parts, has_full=full is not None)


def _kind(ledgers: PartLedgers, call: CallTrace, full: RunTrace | None, item: FrontierModule) -> CallKind:
    again = full.calls[call.index] if full is not None else None
    checkpointed = None
    if again is not None and ledgers.full is not None and call.role is CallRole.BLOCK:
        checkpointed = liveness_of(again, ledgers.full)
    traced = point_call(call, again, liveness_of(call, ledgers.plain), checkpointed)
    return traced.kind.model_copy(update={"role": role_of_part(item)})


def _fitted(at_points: Sequence[Parts], fitter: Fitter) -> Parts:
    cache: dict[tuple[CallKind, ...], CallKind] = {}
    fitted: dict[int, tuple[Part, ...]] = {}
    for outer, first in at_points[0].items():
        columns = [parts.get(outer, ()) for parts in at_points]
        if any([part.path for part in column] != [part.path for part in first] for column in columns):
            paths = ", ".join(part.path for part in first)
            raise DifferentTraces(f"modules {paths} do not all run at another size: avoid branches on sizes")
        fitted[outer] = tuple(_merged(column, fitter, cache) for column in zip(*columns, strict=True))
    return fitted


def _merged(column: Sequence[Part], fitter: Fitter, cache: dict[tuple[CallKind, ...], CallKind]) -> Part:
    kinds = tuple(part.kind for part in column)
    if kinds not in cache:
        cache[kinds] = without_dominated(fitter.merge(kinds, column[0].path))
    return replace(column[0], kind=cache[kinds])
