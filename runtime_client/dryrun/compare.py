"""The predicted step against the recorded one: operations, streams, sizes, edges, order of issue, and memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from planner.program.events import Phase, Stream
from planner.program.outline import Outline, OutlineKind, OutlineOperation, normalised, without
from runtime_client.dryrun.memory import MemoryRecord


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
class Tally:
    """Operations of a kind on a stream and their bytes, predicted and recorded."""

    stream: Stream
    kind: OutlineKind
    num_operations: tuple[int, int]
    size_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences of two outlines, operations first; equal outlines have none.

    Numbers of kernels are not compared: a run counts as one operation.
    """

    differences: tuple[Difference, ...]
    tallies: tuple[Tally, ...]
    """Of every kind on every stream that either side has."""
    num_edges: tuple[int, int]
    """Predicted and recorded, each without the edges that others imply."""
    num_gradient_sums: int
    """Recorded sums of gradients that several units give one tensor. FSDP2 makes them right after the post-backward
    of a unit, the prediction right before it, inside the unit's kernels; they count as equal."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def count(self, kind: DifferenceKind) -> int:
        """Differences of a kind."""
        return sum(difference.kind is kind for difference in self.differences)


_MOST_OVER = 0.005
_MOST_UNDER = 0.001


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Allocated bytes of one rank at the peak of a phase, on the device or in host memory."""

    phase: str
    predicted_bytes: int
    recorded_bytes: int

    @property
    def error(self) -> float:
        """Predicted over recorded, less one; 0.01 is one percent too much."""
        return self.predicted_bytes / self.recorded_bytes - 1 if self.recorded_bytes else 0.0

    @property
    def is_close(self) -> bool:
        """At most 0.5 percent too much or 0.1 percent too little."""
        over = self.predicted_bytes - self.recorded_bytes
        return -_MOST_UNDER * self.recorded_bytes <= over <= _MOST_OVER * self.recorded_bytes


def compare(predicted: Outline, recorded: Outline) -> Comparison:
    """Compare two outlines after `normalised`.

    Operations are matched stream by stream; edges and order are compared between operations that both have.
    """
    ours, recorded = _Side(normalised(predicted)), normalised(recorded)
    sums = _gradient_sums(ours, recorded)
    theirs = _Side(without(recorded, sums))
    differences = [
        *(difference for stream in Stream for difference in _operations(stream, ours, theirs)),
        *_sizes(ours, theirs),
        *_edges(ours, theirs),
    ]
    return Comparison(
        differences=tuple(differences) or tuple(_order(ours, theirs)),
        tallies=tuple(_tallies(ours.operations, theirs.operations)),
        num_edges=(len(ours.edges), len(theirs.edges)),
        num_gradient_sums=len(sums),
    )


def compare_memory(
    record: MemoryRecord, *, micro_batch_bytes: int, optimizer_bytes: int, host_bytes: int
) -> tuple[MemoryComparison, ...]:
    """Predicted peaks of both phases of a step beside the recorded ones, then host memory where any is predicted.

    Recorded host memory counts without what predictions leave out, the optimizer's counts of steps.
    """
    host = MemoryComparison("host memory", host_bytes, record.peak_host_bytes - record.step_counts_bytes)
    return (
        MemoryComparison("peak of a micro-batch", micro_batch_bytes, record.micro_batch.total_bytes),
        MemoryComparison("optimizer step", optimizer_bytes, record.optimizer.total_bytes),
        *([host] if host_bytes else []),
    )


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
        like = _like(operation)
        yield _Name(*like, number=met[like])
        met[like] += 1


def _like(operation: OutlineOperation) -> tuple[Stream, OutlineKind, str, str, int]:
    return operation.stream, operation.kind, operation.unit, operation.phase.value, operation.micro_batch


def _tallies(predicted: Outline, recorded: Outline) -> Iterator[Tally]:
    for stream in Stream:
        for kind in OutlineKind:
            ours, theirs = (
                [operation for operation in side if (operation.stream, operation.kind) == (stream, kind)]
                for side in (predicted, recorded)
            )
            if ours or theirs:
                yield Tally(
                    stream=stream,
                    kind=kind,
                    num_operations=(len(ours), len(theirs)),
                    size_bytes=(_size(ours), _size(theirs)),
                )


def _size(operations: Sequence[OutlineOperation]) -> int:
    return sum(operation.size_bytes for operation in operations)


def _gradient_sums(ours: _Side, recorded: Outline) -> set[int]:
    """Single kernels in backward after the post-backward of another unit that only the recording has."""
    indices = [index for index, operation in enumerate(recorded) if operation.stream is Stream.COMPUTE]
    matcher = SequenceMatcher(
        a=[_like(operation) for operation in ours.operations if operation.stream is Stream.COMPUTE],
        b=[_like(recorded[index]) for index in indices],
        autojunk=False,
    )
    added = [
        index
        for tag, _, _, first, last in matcher.get_opcodes()
        for index in indices[first:last]
        if tag in ("insert", "replace")
    ]
    before = dict(zip(indices[1:], indices, strict=False))
    return {
        index
        for index in added
        if index in before and _is_gradient_sum(recorded[index], after=recorded[before[index]])
    }


def _is_gradient_sum(operation: OutlineOperation, after: OutlineOperation) -> bool:
    """Whether this is one kernel of another unit than the one that was reduced, and waits for nothing."""
    return (
        operation.kind is OutlineKind.KERNELS
        and operation.unit != after.unit
        and operation.phase is Phase.BACKWARD
        and operation.num_kernels == 1
        and not operation.waits
    )


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
