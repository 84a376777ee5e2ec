"""The predicted step against the recorded one: operations, streams, sizes, edges, order of issue, and memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from planner.program.events import Stream
from planner.program.outline import Outline, OutlineKind, OutlineOperation, normalised


class DifferenceKind(StrEnum):
    """In what two outlines differ."""

    NOT_PREDICTED = "operation recorded but not predicted"
    NOT_RECORDED = "operation predicted but not recorded"
    SIZE = "other size"
    EDGE_NOT_PREDICTED = "edge recorded but not predicted"
    EDGE_NOT_RECORDED = "edge predicted but not recorded"
    ORDER = "other order of issue"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, in words."""

    kind: DifferenceKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences of two outlines, operations first; equal outlines have none.

    Numbers of kernels are not compared: a run counts as one operation.
    """

    differences: tuple[Difference, ...]
    predicted_counts: Counter[OutlineKind]
    recorded_counts: Counter[OutlineKind]
    num_edges: tuple[int, int]
    """Predicted and recorded, each without the edges that others imply."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def count(self, kind: DifferenceKind) -> int:
        """Differences of a kind."""
        return sum(difference.kind is kind for difference in self.differences)


def compare(predicted: Outline, recorded: Outline) -> Comparison:
    """Compare two outlines after `normalised`.

    Operations are matched stream by stream; edges and order are compared between operations that both have.
    """
    ours, theirs = _Side(normalised(predicted)), _Side(normalised(recorded))
    differences = [
        *(difference for stream in Stream for difference in _operations(stream, ours, theirs)),
        *_sizes(ours, theirs),
        *_edges(ours, theirs),
    ]
    return Comparison(
        differences=tuple(differences) or tuple(_order(ours, theirs)),
        predicted_counts=Counter(operation.kind for operation in ours.operations),
        recorded_counts=Counter(operation.kind for operation in theirs.operations),
        num_edges=(len(ours.edges), len(theirs.edges)),
    )


def relative_error(predicted: int, recorded: int) -> float:
    """Predicted over recorded, less one; 0.01 is one percent too much."""
    return predicted / recorded - 1 if recorded else float(predicted > 0)


@dataclass(frozen=True, slots=True, order=True)
class _Name:
    """An operation by what it is, and the how-manieth of its like."""

    stream: Stream
    kind: OutlineKind
    unit: str
    phase: str
    micro_batch: int
    number: int

    def __str__(self) -> str:
        again = f", no. {self.number + 1}" if self.number else ""
        if self.kind is OutlineKind.END:
            return f"end of micro-batch {self.micro_batch}"
        return (
            f"{self.kind} of {self.unit or '(root)'} on {self.stream} "
            f"in {self.phase} of micro-batch {self.micro_batch}{again}"
        )


class _Side:
    """An outline with names for its operations."""

    def __init__(self, operations: Outline) -> None:
        self.operations = operations
        self.names = tuple(_names(operations))
        self.by_name = dict(zip(self.names, operations, strict=True))
        self.edges = {
            (self.names[wait], self.names[index])
            for index, operation in enumerate(operations)
            for wait in operation.waits
        }

    def on(self, stream: Stream) -> list[_Name]:
        """Names on a stream, in order."""
        return [name for name in self.names if name.stream is stream]


def _names(operations: Sequence[OutlineOperation]) -> Iterator[_Name]:
    met: Counter[tuple[object, ...]] = Counter()
    for operation in operations:
        like = (operation.stream, operation.kind, operation.unit, operation.phase.value, operation.micro_batch)
        yield _Name(*like, number=met[like])
        met[like] += 1


def _operations(stream: Stream, ours: _Side, theirs: _Side) -> Iterator[Difference]:
    predicted, recorded = ours.on(stream), theirs.on(stream)
    matcher = SequenceMatcher(a=predicted, b=recorded, autojunk=False)
    for _, first, last, other_first, other_last in (code for code in matcher.get_opcodes() if code[0] != "equal"):
        place = f"after {predicted[first - 1]}" if first else "at the start"
        for name in recorded[other_first:other_last]:
            yield Difference(DifferenceKind.NOT_PREDICTED, f"{name}, {place}")
        for name in predicted[first:last]:
            yield Difference(DifferenceKind.NOT_RECORDED, f"{name}, {place}")


def _sizes(ours: _Side, theirs: _Side) -> Iterator[Difference]:
    for name, operation in ours.by_name.items():
        other = theirs.by_name.get(name)
        if other is not None and other.size_bytes != operation.size_bytes:
            yield Difference(
                DifferenceKind.SIZE, f"{name}: {operation.size_bytes} predicted, {other.size_bytes} recorded"
            )


def _edges(ours: _Side, theirs: _Side) -> Iterator[Difference]:
    common = ours.by_name.keys() & theirs.by_name.keys()
    for kind, edges in (
        (DifferenceKind.EDGE_NOT_PREDICTED, theirs.edges - ours.edges),
        (DifferenceKind.EDGE_NOT_RECORDED, ours.edges - theirs.edges),
    ):
        for before, after in sorted(edges):
            if {before, after} <= common:
                yield Difference(kind, f"{after} waits for {before}")


def _order(ours: _Side, theirs: _Side) -> Iterator[Difference]:
    for place, (name, other) in enumerate(zip(ours.names, theirs.names, strict=True)):
        if name != other:
            yield Difference(DifferenceKind.ORDER, f"operation {place} is {other}, but {name} was predicted")
            return
