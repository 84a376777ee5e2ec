"""Selective checkpointing of blocks: sets of operations worth keeping, and what each keeps, needs and repeats.

[Note: search] Sets of the most expensive operations of the blocks are traced at the first point, with torch's own
selective checkpointing and one block of each sort. A block keeps the sets that are best: no other set, nor keeping
everything, nor full checkpointing, has both as few kept bytes and as little to recompute. Only these are traced at
the other points. A set is left out where torch would refuse it (a kept output is changed in place later), where it
would make gradients wrong (random operations, see `runtime_client.saved_ops`) and where its sizes follow no
polynomial.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.schema.model import CallRole, KeptBy, Liveness, SelectiveCheckpoint, Work
from runtime_client.describe.calls import Pass
from runtime_client.describe.errors import DifferentTraces, NotPolynomial
from runtime_client.describe.fit import Fitter, PointSet
from runtime_client.describe.op_sets import FLOPS_PER_BYTE, SavedOps, op_sets
from runtime_client.describe.point import PointTrace, ledger_of, liveness_of, work_of
from runtime_client.describe.run import RunTrace, Subject, run
from runtime_client.describe.sample import passable_blocks

MAX_SETS = 4
"""For each block: every one is an alternative in the search for a plan."""
_MUTATED = "selective activation checkpoint has been mutated"
"""Part of torch's message."""

_Key = tuple[int, SavedOps]
"""Index of a group's traced call, and operations that it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Blocks that are alike at all points, by index of their calls."""

    indices: tuple[int, ...]
    ops: SavedOps
    """Operations that launch kernels in their forward."""

    @property
    def traced(self) -> int:
        """The block that is traced."""
        return self.indices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Costs of one way to run a block."""

    kept_bytes: int
    recompute_cost: int

    def is_no_worse_than(self, other: "_Choice") -> bool:
        """In both respects."""
        return self.kept_bytes <= other.kept_bytes and self.recompute_cost <= other.recompute_cost

    def gain_over(self, less: "_Choice", more: "_Choice") -> float:
        """Recomputation that a mix of a choice with less and one with more kept bytes has beyond this one."""
        share = (self.kept_bytes - less.kept_bytes) / (more.kept_bytes - less.kept_bytes)
        return less.recompute_cost + share * (more.recompute_cost - less.recompute_cost) - self.recompute_cost


def with_selective(
    subject: Subject, point_set: PointSet, traces: Sequence[PointTrace], plain: RunTrace
) -> list[PointTrace]:
    """Add selective checkpointing to the kinds of blocks.

    Args:
        subject: the model.
        point_set: the points of `traces`.
        traces: the model at each point.
        plain: the run without checkpointing at the first point.
    """
    groups = _groups(traces, plain)
    search = _Search(subject=subject, groups=groups, skipped=_skipped(traces[0], plain, groups))
    found = search.best(traces[0], plain)
    columns = [found, *(search.again(trace, list(found)) for trace in traces[1:])]
    return _attached(traces, groups, _fitting(point_set, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    subject: Subject
    groups: tuple[_Group, ...]
    skipped: frozenset[str]

    def best(self, base: PointTrace, plain: RunTrace) -> dict[_Key, SelectiveCheckpoint]:
        """The sets that each group keeps."""
        paths = {base.calls[group.traced].path for group in self.groups}
        found: dict[int, dict[SavedOps, SelectiveCheckpoint]] = {group.traced: {} for group in self.groups}
        useless: list[SavedOps] = []
        for ops in op_sets([plain.calls[group.traced] for group in self.groups], plain.attention_draws):
            if any(subset <= ops for subset in useless):
                continue
            entries = self._trace(base, dict.fromkeys(paths, ops))
            if not any(_saves_memory(base, index, entry) for index, entry in entries.items()):
                useless.append(ops)
            for index, entry in entries.items():
                found[index].setdefault(frozenset(entry.saved_ops), entry)
        return {
            (index, ops): entry
            for index, entries in found.items()
            for ops, entry in _best(base, index, entries).items()
        }

    def again(self, at: PointTrace, keys: Sequence[_Key]) -> dict[_Key, SelectiveCheckpoint]:
        """The same sets at another point; in each run every group tries another one of its own."""
        sets: dict[str, list[SavedOps]] = {}
        for index, ops in keys:
            of_path = sets.setdefault(at.calls[index].path, [])
            if ops not in of_path:
                of_path.append(ops)
        found = {}
        for number in range(max(map(len, sets.values()), default=0)):
            tried = {path: of_path[number] for path, of_path in sets.items() if number < len(of_path)}
            entries = self._trace(at, tried)
            for index, entry in entries.items():
                found[index, frozenset(entry.saved_ops)] = entry
        return {key: found[key] for key in keys if key in found}

    def _trace(self, at: PointTrace, saved_ops: Mapping[str, SavedOps]) -> dict[int, SelectiveCheckpoint]:
        """What keeping the outputs of some operations (by path) does to each group, by index of the traced call."""
        try:
            traced = run(self.subject, at.point, checkpointed=True, saved_ops=saved_ops, skipped=self.skipped)
        except RuntimeError as error:
            if _MUTATED not in str(error):
                raise
            return {}
        if [call.path for call in traced.calls] != [call.path for call in at.calls]:
            return {}
        shared = {label: tensor for label, tensor in at.shared.items() if tensor.kept_by is not KeptBy.NONE}
        ledger = ledger_of(traced, shared, [_kept_bytes(call.kind.none) for call in at.calls])
        entries = {}
        for group in self.groups:
            call = traced.calls[group.traced]
            own_ops = group.ops & saved_ops.get(call.path, frozenset())
            if own_ops and tuple(call.gradient_order) == at.calls[group.traced].kind.gradient_order:
                entries[group.traced] = SelectiveCheckpoint(
                    saved_ops=tuple(sorted(own_ops)),
                    liveness=liveness_of(call, ledger),
                    recompute=tuple(work_of(region.works[Pass.RECOMPUTE]) for region in call.regions),
                )
        return entries


def _groups(traces: Sequence[PointTrace], plain: RunTrace) -> tuple[_Group, ...]:
    groups: dict[object, list[int]] = {}
    for index, call in enumerate(traces[0].calls):
        if call.kind.role is CallRole.BLOCK and call.kind.full is not None and call.kind.output_requires_grad:
            column = tuple((trace.calls[index].kind, trace.calls[index].ops) for trace in traces)
            groups.setdefault(column, []).append(index)
    return tuple(
        _Group(indices=tuple(indices), ops=frozenset(plain.calls[indices[0]].op_uses))
        for indices in groups.values()
    )


def _skipped(base: PointTrace, plain: RunTrace, groups: Iterable[_Group]) -> frozenset[str]:
    passable = passable_blocks(base, plain) - {group.traced for group in groups}
    return frozenset(base.calls[index].path for group in groups for index in group.indices if index in passable)


def _saves_memory(base: PointTrace, index: int, entry: SelectiveCheckpoint) -> bool:
    return _kept_bytes(entry.liveness) < _kept_bytes(base.calls[index].kind.none)


def _best(
    base: PointTrace, index: int, entries: dict[SavedOps, SelectiveCheckpoint]
) -> dict[SavedOps, SelectiveCheckpoint]:
    """Entries that nothing else beats in both respects, of equal ones the first, and at most `MAX_SETS`.

    What is left out is worth least beside a mix of its neighbours: blocks may differ.
    """
    kind = base.calls[index].kind
    assert kind.full is not None
    none = _Choice(kept_bytes=_kept_bytes(kind.none), recompute_cost=0)
    recompute = [region.recompute for region in kind.regions]
    full = _Choice(kept_bytes=_kept_bytes(kind.full), recompute_cost=_cost(recompute))
    costs = {
        ops: _Choice(kept_bytes=_kept_bytes(entry.liveness), recompute_cost=_cost(entry.recompute))
        for ops, entry in entries.items()
    }
    best: list[SavedOps] = []
    for ops in sorted(entries, key=lambda ops: (costs[ops].kept_bytes, costs[ops].recompute_cost, sorted(ops))):
        if not any(other.is_no_worse_than(costs[ops]) for other in (none, full, *map(costs.__getitem__, best))):
            best.append(ops)
    while len(best) > MAX_SETS:
        line = [full, *map(costs.__getitem__, best), none]
        gains = [line[place].gain_over(*line[place - 1 : place + 2 : 2]) for place in range(1, len(line) - 1)]
        del best[gains.index(min(gains))]
    return {ops: entries[ops] for ops in best}


def _fitting(
    point_set: PointSet, columns: Sequence[dict[_Key, SelectiveCheckpoint]]
) -> dict[int, list[tuple[SelectiveCheckpoint, ...]]]:
    """By index of the traced call: its entries, each at every point, whose sizes follow a polynomial."""
    fitter = Fitter(point_set)
    fitting: dict[int, list[tuple[SelectiveCheckpoint, ...]]] = {}
    for key in columns[0]:
        entries = tuple(column[key] for column in columns if key in column)
        if len(entries) < len(columns):
            continue
        try:
            fitter.merge(entries, "", "selective")
        except (DifferentTraces, NotPolynomial):
            continue
        fitting.setdefault(key[0], []).append(entries)
    return fitting


def _attached(
    traces: Sequence[PointTrace],
    groups: Iterable[_Group],
    fitting: dict[int, list[tuple[SelectiveCheckpoint, ...]]],
) -> list[PointTrace]:
    attached = []
    for position, trace in enumerate(traces):
        calls = list(trace.calls)
        for group in groups:
            selective = tuple(entries[position] for entries in fitting.get(group.traced, []))
            kind = calls[group.traced].kind.model_copy(update={"selective": selective})
            for index in group.indices:
                calls[index] = replace(calls[index], kind=kind)
        attached.append(replace(trace, calls=tuple(calls)))
    return attached


def _kept_bytes(liveness: Liveness) -> int:
    return sum(int(tensor.size_bytes.one) for tensor in liveness.saved)


def _cost(works: Iterable[Work]) -> int:
    return sum(max(int(work.flops.one), FLOPS_PER_BYTE * int(work.moved_bytes.one)) for work in works)
