"""What one call hands to the next one to run, beyond what is kept: outputs in forward, gradients in backward."""

from collections.abc import Iterable

from planner.program.build.emitter import Emitter
from planner.program.choices import Condition
from planner.program.events import Stream
from planner.schema import MemoryCategory

Sizes = Iterable[tuple[int, Condition]]
"""Bytes under each policy that a call may have."""


class InFlight:
    """State of the hand-over while a micro-batch is walked through; at most one call hands over at a time."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._flying: str | None = None
        self._unsummed: str | None = None

    def launch(self, call: int, sizes: Sizes, moment: str) -> None:
        """What a call leaves alive for the next one."""
        self._flying = f"V{call}"
        self._allocate(self._flying, sizes, moment)

    def land(self) -> None:
        """The moments of the call that runs now contain what was on its way to it."""
        if self._flying is not None:
            self._emitter.free(self._flying)
            self._flying = None

    def hold(self, call: int, sizes: Sizes, moment: str) -> None:
        """Gradients of a call's inputs that autograd has yet to add to those of other calls."""
        self._unsummed = f"J{call}"
        self._allocate(self._unsummed, sizes, moment)

    def add(self, sizes: Sizes, moment: str) -> None:
        """Autograd adds what was held; `sizes` are alive for a moment."""
        if self._unsummed is not None:
            self._emitter.free(self._unsummed)
            self._unsummed = None
        for size, when in sizes:
            if size:
                self._emitter.touch(((MemoryCategory.TRANSIENTS, size),), moment, when)

    def _allocate(self, buffer: str, sizes: Sizes, moment: str) -> None:
        for size, when in sizes:
            self._emitter.allocate(buffer, Stream.COMPUTE, MemoryCategory.TRANSIENTS, size, moment, when)
