"""The outline of a program: what runs on which stream, after what, without durations.

Two producers make outlines: this module, from the program that the planner predicts, and a dry run, from what the
real FSDP2 code issues. Equal outlines mean that the prediction has the operations, sizes, order and dependencies of
the real step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planner.program.edges import Entry, Issued, Recorded, Waited, resolve_edges
from planner.program.events import Operation, OperationKind, Phase, Program, Stream, Wait
from planner.program.units import Partition, contains


class OutlineKind(StrEnum):
    """What an operation does; FSDP2's own go by the names of `planner.program.events.OperationKind`."""

    HOST_TO_DEVICE = "host_to_device"
    """Shards of an offloaded unit."""
    COPY_IN = "all_gather_copy_in"
    """Shards into the all-gather buffer."""
    ALL_GATHER = "all_gather"
    COPY_OUT = "all_gather_copy_out"
    """All-gather buffer into the unsharded parameters."""
    RESHARD = "reshard"
    """Copies of what a partially resharded unit keeps after forward."""
    CHUNK_CAT = "chunk_cat"
    """Gradients into the reduce-scatter buffer."""
    DIVIDE = "divide"
    """Division before a float16 reduction."""
    REDUCE_SCATTER = "reduce_scatter"
    LOCAL_REDUCE = "local_reduce"
    """The copy that stands for a reduce-scatter over a single rank."""
    ALL_REDUCE = "all_reduce"
    POST_REDUCE = "post_reduce"
    """Divisions, casts and additions of sharded gradients."""
    ACCUMULATE = "accumulate"
    """Unsharded gradients kept, added or made of zeros."""
    OFFLOAD = "offload"
    """Sharded gradients to the host."""
    ACTIVATION_OUT = "activation_out"
    """Activations to the host."""
    ACTIVATION_IN = "activation_in"
    """Activations back to the device."""
    KERNELS = "kernels"
    """A run of the model's own kernels."""
    END = "end"
    """All streams are done: the end of a micro-batch, on the compute stream."""


RUNS = frozenset(
    {
        OutlineKind.HOST_TO_DEVICE,
        OutlineKind.COPY_OUT,
        OutlineKind.RESHARD,
        OutlineKind.KERNELS,
        OutlineKind.ACCUMULATE,
        OutlineKind.CHUNK_CAT,
        OutlineKind.POST_REDUCE,
        OutlineKind.OFFLOAD,
        OutlineKind.ACTIVATION_OUT,
        OutlineKind.ACTIVATION_IN,
    }
)
"""Kinds of which several kernels in a row count as one operation."""
_CALLS = (OperationKind.FORWARD, OperationKind.RECOMPUTE, OperationKind.BACKWARD)
_STREAMS = {stream: number for number, stream in enumerate(Stream)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineOperation:
    """One operation, or one run of kernels."""

    stream: Stream
    kind: OutlineKind
    unit: str
    """First module of the unit that FSDP2 works for; for kernels the unit whose pass they run in."""
    phase: Phase
    micro_batch: int
    waits: tuple[int, ...]
    """Indices of operations of other streams that must end first; those that others imply are left out."""
    size_bytes: int
    """Shards copied in or kept, bytes gathered or accumulated, input of a reduction or of the division before it,
    bytes moved from or to the host; 0 for kernels and for what follows a reduction on the device."""
    num_kernels: int

    def continues(self, other: "OutlineOperation") -> bool:
        """Whether this is one more kernel of the run `other`, its predecessor on the stream."""
        mine = (self.kind, self.unit, self.phase, self.micro_batch)
        return (
            self.kind in RUNS
            and not self.waits
            and mine == (other.kind, other.unit, other.phase, other.micro_batch)
        )


Outline = tuple[OutlineOperation, ...]
"""Operations of one optimizer step's micro-batches, in the order in which the host issues them."""


def outline(programs: Sequence[Program], partition: Partition) -> Outline:
    """Outline of the micro-batches of a step.

    Args:
        programs: the program of each micro-batch, with no condition left open.
        partition: the units that the programs number.
    """
    drawn = _Drawing(tuple(unit.modules[0] for unit in partition.units))
    for number, program in enumerate(programs):
        drawn.micro_batch(number, program)
    waits = resolve_edges(drawn.entries)
    return normalised([replace(seen, waits=waits[index]) for index, seen in enumerate(drawn.operations)])


def normalised(operations: Sequence[OutlineOperation]) -> Outline:
    """The normal form: `_normalised_once` until nothing changes, since a run that grows may imply further edges."""
    found = tuple(operations)
    while (simpler := _normalised_once(found)) != found:
        found = simpler
    return found


def _normalised_once(operations: Sequence[OutlineOperation]) -> Outline:
    """The same without the details inside a call that a prediction does not have.

    - A run is one operation, and edges to its parts are edges to the run. FSDP2 records events and issues
      operations on other streams amid a run, which splits what a dry run sees; a part that waits for nothing is
      ordered by its stream alone.
    - The cast of the model's inputs, which FSDP2 issues before the root's copy-out, comes with what the compute
      stream does next after that.
      Where the root is gathered in place, it waits for that gather, and so does what waits for the cast.
    - The few kernels of a checkpointed backward that need nothing recomputed come after the recomputation.
    """
    order: list[_Run] = []
    cast: _Run | None = None
    run_up: _Run | None = None
    gathers = _roots_in_place(operations)
    before_root: dict[int, int] = {}
    """Casts by the gather of the root that they are put behind."""
    for index, operation in enumerate(operations):
        if cast is not None and operation.stream is cast.operation.stream and not _makes_root(operation):
            _append(order, cast)
            cast = None
        if run_up is not None and _is_backward(operation):
            _append(order, run_up)
            run_up = None
        before = _last(order, operation.stream)
        gather = gathers.get(operation.micro_batch, 0)
        if index < gather and cast is None and _may_be_cast(operation):
            cast = _Run(replace(operation, waits=(*operation.waits, gather)), [])
            before_root[gather] = index
        elif before is not None and cast is None and _follows_cast(operation, before):
            cast = _passed(order, before, _Run(operation, [index]))
        elif before is not None and run_up is None and _follows_run_up(operation, before):
            run_up = _passed(order, before, _Run(operation, [index]))
        else:
            _append(order, _Run(operation, [index]))
    for left in (cast, run_up):
        if left is not None:
            _append(order, left)
    for run in order:
        run.members += [before_root[member] for member in run.members if member in before_root]
    return _renumbered(order)


@dataclass(slots=True, eq=False)
class _Run:
    """An operation of the normal form and the indices of those that it stands for, which its waits go by."""

    operation: OutlineOperation
    members: list[int]


_RUN_UP = 4
"""Most kernels of a backward that come before its recomputation."""


def _last(order: list[_Run], stream: Stream) -> _Run | None:
    return next((run for run in reversed(order) if run.operation.stream is stream), None)


def _append(order: list[_Run], run: _Run) -> None:
    """Add a run at the end, or to its predecessor on the stream when it is one more part of that."""
    before = _last(order, run.operation.stream)
    if before is not None and run.operation.continues(before.operation):
        before.operation = _joined(before.operation, run.operation)
        before.members += run.members
    else:
        order.append(run)


def _passed(order: list[_Run], before: _Run, run: _Run) -> _Run:
    """Put a run in the place of its predecessor on the stream, which is taken out and returned."""
    order.remove(before)
    run.operation = replace(run.operation, waits=(*before.operation.waits, *run.operation.waits))
    _append(order, run)
    before.operation = replace(before.operation, waits=())
    return before


def _follows_cast(operation: OutlineOperation, before: _Run) -> bool:
    return _makes_root(operation) and _may_be_cast(before.operation)


def _may_be_cast(operation: OutlineOperation) -> bool:
    return operation.kind is OutlineKind.KERNELS and operation.unit == "" and operation.phase is Phase.FORWARD


def _roots_in_place(operations: Sequence[OutlineOperation]) -> dict[int, int]:
    """By micro-batch, the gather of a root that nothing is copied out of."""
    found: dict[int, int] = {}
    for index, operation in enumerate(operations):
        if operation.unit == "" and operation.phase is Phase.FORWARD:
            if operation.kind is OutlineKind.ALL_GATHER:
                found.setdefault(operation.micro_batch, index)
            elif operation.kind is OutlineKind.COPY_OUT:
                found.pop(operation.micro_batch, None)
    return found


def _makes_root(operation: OutlineOperation) -> bool:
    """The root's parameters come into being on compute: copied out, or with one rank fetched and copied."""
    kinds = (OutlineKind.COPY_OUT, OutlineKind.HOST_TO_DEVICE)
    return operation.kind in kinds and operation.unit == "" and operation.phase is Phase.FORWARD


def _follows_run_up(operation: OutlineOperation, before: _Run) -> bool:
    """A recomputation begins, after a few kernels of the backward of the same unit or of one inside it."""
    run_up = before.operation
    return (
        operation.kind is run_up.kind is OutlineKind.KERNELS
        and contains(operation.unit, run_up.unit)
        and operation.phase is Phase.RECOMPUTE
        and run_up.phase is Phase.BACKWARD
        and run_up.num_kernels <= _RUN_UP
        and not operation.waits
    )


def _is_backward(operation: OutlineOperation) -> bool:
    return operation.kind in (OutlineKind.KERNELS, OutlineKind.END) and operation.phase is Phase.BACKWARD


def _renumbered(order: list[_Run]) -> Outline:
    places = {member: place for place, run in enumerate(order) for member in run.members}
    placed = [replace(run.operation, waits=tuple(places[wait] for wait in run.operation.waits)) for run in order]
    waits = resolve_edges(_entries_of(placed))
    return tuple(replace(operation, waits=waits[index]) for index, operation in enumerate(placed))


def without(operations: Sequence[OutlineOperation], dropped: set[int]) -> Outline:
    """An outline without some operations (indices) that wait for nothing.

    What waits for one of them then waits for the operation before it on its stream.
    """
    kept: list[_Run] = []
    for index, operation in enumerate(operations):
        if index not in dropped:
            kept.append(_Run(operation, [index]))
        elif (before := _last(kept, operation.stream)) is not None:
            before.members.append(index)
    return normalised(_renumbered(kept))


def _joined(run: OutlineOperation, more: OutlineOperation) -> OutlineOperation:
    return replace(run, size_bytes=run.size_bytes + more.size_bytes, num_kernels=run.num_kernels + more.num_kernels)


def _entries_of(operations: Sequence[OutlineOperation]) -> Iterator[Entry]:
    for index, operation in enumerate(operations):
        stream = _STREAMS[operation.stream]
        yield from (Waited(stream=stream, event=wait) for wait in operation.waits)
        yield Issued(stream=stream, operation=index)
        yield Recorded(stream=stream, event=index)


@dataclass(slots=True)
class _Drawing:
    """Operations and entries of the micro-batches drawn so far.

    An event goes by the number of its operation, those of marks go by negative numbers.
    """

    units: tuple[str, ...]
    operations: list[OutlineOperation] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    num_marks: int = 0

    def micro_batch(self, number: int, program: Program) -> None:
        if self.operations:  # FSDP2: the gather streams follow the compute stream where the root's forward begins
            self._wait(Stream.COPY_IN, len(self.operations) - 1)
            self._wait(Stream.GATHER, len(self.operations) - 1)
        numbers: dict[int, int] = {}
        for index, event in enumerate(program.events):
            assert not event.when, "an outline needs a program with all knobs fixed"
            match event:
                case Operation():
                    for wait in event.waits:
                        self._wait(event.stream, numbers[wait])
                    if event.kind is OperationKind.MARK:
                        numbers[index] = self._mark(event.stream)
                    else:
                        numbers[index] = self._issue(self._operation(number, event))
                case Wait():
                    self._wait(event.stream, numbers[event.operation])
                case _:
                    pass
        self._issue(
            OutlineOperation(
                stream=Stream.COMPUTE,
                kind=OutlineKind.END,
                unit="",
                phase=Phase.BACKWARD,
                micro_batch=number,
                waits=(),
                size_bytes=0,
                num_kernels=0,
            )
        )

    def _operation(self, number: int, event: Operation) -> OutlineOperation:
        return OutlineOperation(
            stream=event.stream,
            kind=OutlineKind.KERNELS if event.kind in _CALLS else OutlineKind(event.kind),
            unit=self.units[event.unit],
            phase=event.phase,
            micro_batch=number,
            waits=(),
            size_bytes=event.size_bytes,
            num_kernels=event.launches,
        )

    def _wait(self, stream: Stream, operation: int) -> None:
        self.entries.append(Waited(stream=_STREAMS[stream], event=operation))

    def _mark(self, stream: Stream) -> int:
        self.num_marks += 1
        self.entries.append(Recorded(stream=_STREAMS[stream], event=-self.num_marks))
        return -self.num_marks

    def _issue(self, operation: OutlineOperation) -> int:
        number = len(self.operations)
        self.operations.append(operation)
        self.entries.append(Issued(stream=_STREAMS[operation.stream], operation=number))
        self.entries.append(Recorded(stream=_STREAMS[operation.stream], event=number))
        return number
