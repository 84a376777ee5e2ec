"""From events of streams to edges between operations: which operation must end before which starts."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """An operation was issued on a stream."""

    stream: int
    operation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A stream reached the point where `event` was recorded."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """Later operations of `stream` start after `event`."""

    stream: int
    event: int


Entry = Issued | Recorded | Waited
"""What the host did, in order; operations are numbered in the order of issue."""
Clock = dict[int, int]
"""For each stream the latest operation that is known to have ended."""


@dataclass(slots=True)
class _StreamState:
    clock: Clock = field(default_factory=dict)
    """Known when the last operation issued so far starts, that operation included."""
    pending: Clock = field(default_factory=dict)
    """Known to the next operation on top of that."""


def resolve_edges(entries: Iterable[Entry]) -> dict[int, tuple[int, ...]]:
    """For each operation the operations of other streams that it waits for, without those that others imply.

    An edge is implied when an earlier operation of the same stream, or another edge's operation, already waited
    for it or for a later operation of its stream. Events recorded before the entries began count as past.
    """
    streams: dict[int, _StreamState] = {}
    events: dict[int, Clock] = {}
    clocks: dict[int, Clock] = {}
    edges: dict[int, tuple[int, ...]] = {}
    for entry in entries:
        state = streams.setdefault(entry.stream, _StreamState())
        match entry:
            case Recorded():
                events[entry.event] = _latest(state.clock, state.pending)
            case Waited():
                state.pending = _latest(state.pending, events.get(entry.event, {}))
            case Issued():
                edges[entry.operation] = _unimplied(entry.stream, state, clocks)
                state.clock = _latest(state.clock, state.pending) | {entry.stream: entry.operation}
                state.pending = {}
                clocks[entry.operation] = state.clock
    return edges


def _latest(first: Clock, second: Clock) -> Clock:
    return {stream: max(first.get(stream, -1), second.get(stream, -1)) for stream in first.keys() | second.keys()}


def _unimplied(stream: int, state: _StreamState, clocks: dict[int, Clock]) -> tuple[int, ...]:
    new = {
        source: operation
        for source, operation in state.pending.items()
        if source != stream and operation > state.clock.get(source, -1)
    }
    implied = {
        source
        for source, operation in new.items()
        if any(clocks[other].get(source, -1) >= operation for other in new.values() if other != operation)
    }
    return tuple(sorted(operation for source, operation in new.items() if source not in implied))
