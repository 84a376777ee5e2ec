"""Describes blocks as sequences of smaller calls, for plans with units inside them.

Runs in which the children of blocks are calls (`split`, `part_runs`) show the parts. They are laid into the calls
of the runs before (`nesting`), and what these keep is divided among them (`part_ledger`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.schema.model import Call, CallKind
from runtime_client.describe.fit import PointSet
from runtime_client.describe.part_runs import Depth, WholeCalls, trace_depth
from runtime_client.describe.point import PointTrace
from runtime_client.describe.prepare import unused_name
from runtime_client.describe.run import Subject
from runtime_client.describe.split import SplitRule

_PREFIX = "block"
_GLUE = "glue"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedParts:
    """The parts of calls by index of the call, and the kinds that they are of."""

    calls: Mapping[int, tuple[Call, ...]]
    kinds: Mapping[str, CallKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A part with its own parts; its path is relative to the call."""

    path: str
    kind: CallKind
    parts: tuple["_Node", ...]


_Trees = dict[int, tuple[_Node, ...]]


def trace_parts(
    subject: Subject,
    traces: Sequence[PointTrace],
    point_set: PointSet,
    skippable: frozenset[str],
    rule: SplitRule | None = None,
) -> TracedParts:
    """Trace the parts of every block.

    Args:
        subject: the model.
        traces: its calls at each point.
        point_set: the points.
        skippable: blocks that may let their input pass where an equal one is traced.
        rule: what is split; None stands for `SplitRule()`.

    Raises:
        NotDescribable: the parts do other things than the blocks did.
    """
    paths = [call.path for call in traces[0].calls]
    like = {
        index: next((other for other in group if paths[other] not in skippable), group[0])
        for group in _equal_calls(traces)
        for index in group
        if paths[index] in skippable
    }
    skipped = {index: other for index, other in like.items() if index != other}
    whole = WholeCalls.of(subject, traces)
    trees = _trees(subject, whole, point_set, frozenset(paths[index] for index in skipped), rule or SplitRule())
    return _stored(trees | {index: trees[other] for index, other in skipped.items() if other in trees})


def _equal_calls(traces: Sequence[PointTrace]) -> list[list[int]]:
    """Calls that are alike at all points, in groups."""
    groups: dict[object, list[int]] = {}
    for index in range(len(traces[0].calls)):
        key = tuple((trace.calls[index].kind, trace.calls[index].ops) for trace in traces)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _trees(
    subject: Subject, whole: WholeCalls, point_set: PointSet, skipped: frozenset[str], rule: SplitRule
) -> _Trees:
    """Parts, and parts of parts, of every block that is not skipped."""
    paths = whole.ownership.paths
    depths: list[Depth] = []
    while (depth := trace_depth(subject, whole, point_set, skipped, rule, len(depths))) is not None:
        depths.append(depth)
        whole = depth.calls
    return {index: _tree(index, paths[index], depths) for index in (depths[0].parts if depths else ())}


def _tree(index: int, path: str, depths: Sequence[Depth]) -> tuple[_Node, ...]:
    """Parts of the call of this index before the first of `depths`."""
    if not depths:
        return ()
    return tuple(
        _Node(
            path=part.path.removeprefix(path).removeprefix("."),
            kind=part.kind,
            parts=_tree(part.index, part.path, depths[1:]),
        )
        for part in depths[0].parts.get(index, ())
    )


def _stored(trees: _Trees) -> TracedParts:
    """Equal parts once, under names."""
    names: dict[CallKind, str] = {}
    taken: set[str] = set()

    def stored(nodes: tuple[_Node, ...], prefix: str) -> tuple[Call, ...]:
        return tuple(Call(path=node.path, kind=name_of(node, prefix)) for node in nodes)

    def name_of(node: _Node, prefix: str) -> str:
        wished = f"{prefix}.{node.path or _GLUE}"
        kind = node.kind.model_copy(update={"parts": stored(node.parts, wished)})
        if kind not in names:
            names[kind] = unused_name(wished, taken)
        return names[kind]

    calls = {index: stored(nodes, _PREFIX) for index, nodes in trees.items()}
    return TracedParts(calls=calls, kinds={name: kind for kind, name in names.items()})
