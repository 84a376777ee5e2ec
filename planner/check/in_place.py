"""Buffers of units that are gathered in place: let go of by one hook, freed in the gathers of others."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.check.machine import Machine, Stream
from planner.schema.plan import MemoryCategory


@dataclass(slots=True, eq=False)
class InPlaceBuffer:
    """The whole parameters of one unit, which are the output of its all-gather."""

    size_bytes: int
    pool: Stream = Stream.COPY_IN
    """Where it was allocated last."""
    released_ns: int | None = None
    """What compute had reached when the unit let go of it; None while it is in use or freed."""


@dataclass(slots=True)
class InPlaceBuffers:
    """Those of a model; within the root's forward none is freed at once."""

    machine: Machine
    is_in_forward: bool = False
    _generations: tuple[list[InPlaceBuffer], list[InPlaceBuffer]] = field(default_factory=lambda: ([], []))
    """Let go of before the last gather in place, and since."""

    def end_forward(self) -> None:
        """The root's forward is over."""
        self.is_in_forward = False
        self._free_all()

    def gather_into(self, buffer: InPlaceBuffer, pool: Stream) -> None:
        """Make room for a gather, and take memory for it unless the buffer has not been freed."""
        before, since = self._generations
        is_there = buffer in before or buffer in since
        if is_there:
            self._wait_for(buffer)
        self._free(other for other in before if other is not buffer)
        self._generations = ([other for other in since if other is not buffer], [])
        buffer.released_ns = None
        if not is_there:
            buffer.pool = pool
            self.machine.allocate(pool, MemoryCategory.UNSHARDED_PARAMETERS, buffer.size_bytes)

    def let_go(self, buffer: InPlaceBuffer) -> None:
        """The unit is done with it."""
        buffer.released_ns = self.machine.time_ns(Stream.COMPUTE)
        self._generations[1].append(buffer)
        if not self.is_in_forward:
            self._free_all()

    def _free_all(self) -> None:
        before, since = self._generations
        self._free([*before, *since])
        self._generations = ([], [])

    def _free(self, buffers: Iterable[InPlaceBuffer]) -> None:
        for buffer in buffers:
            self._wait_for(buffer)
            self.machine.free(buffer.pool, MemoryCategory.UNSHARDED_PARAMETERS, buffer.size_bytes)

    def _wait_for(self, buffer: InPlaceBuffer) -> None:
        """Copy-ins and all-gathers may write what compute has read."""
        assert buffer.released_ns is not None
        self.machine.wait(Stream.COPY_IN, buffer.released_ns)
        self.machine.wait(Stream.GATHER, buffer.released_ns)
