"""Full gradients of a group: from autograd to the reduction, through what micro-batches without one keep."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.check.comm import CommContext
from planner.check.machine import Stream
from planner.check.units import ShardedParameter, Unit
from planner.schema.plan import MemoryCategory

_GRADIENTS = MemoryCategory.UNSHARDED_GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGradient:
    """What a reduction takes in for one parameter."""

    parameter: ShardedParameter
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """The gradient that one call makes for a parameter."""

    parameter: ShardedParameter
    completes: bool
    """No call that runs later in backward uses the parameter: autograd delivers the sum."""


class Gradients:
    """The unsharded gradients of one group.

    Autograd sums what the uses of a parameter contribute and delivers the sum once, when backward has passed the
    first of them: a unit that runs several times has its gradients in the post-backward of its first pass.
    """

    def __init__(self, unit: Unit, comm: CommContext) -> None:
        self._unit = unit
        self._comm = comm
        self._machine = comm.machine
        self._made: set[str] = set()
        """Parameters that a call of this micro-batch has contributed to."""
        self._summed: set[str] = set()
        """Sums that autograd still holds."""
        self._delivered: dict[str, ShardedParameter] = {}
        self._accumulated: dict[str, ShardedParameter] = {}
        """Gradients in the element type of the reduction, of micro-batches that did not reduce."""

    def begin_micro_batch(self) -> None:
        """Calls contribute anew."""
        assert not self._summed, "backward ended with a gradient that no call completes"
        self._made.clear()

    def bytes_while_made(self, contributions: Sequence[Contribution]) -> int:
        """Bytes beyond what was there before a call, when it has made these gradients.

        A sum of several uses counts once. What is added to an earlier micro-batch's gradient is gone by then.
        """
        new = [item for item in contributions if item.parameter.name not in self._made]
        return sum(item.parameter.gradient_bytes for item in new if not self._is_added(item))

    def added_bytes(self, contributions: Iterable[Contribution]) -> int:
        """Bytes of these gradients that autograd adds to those of earlier micro-batches."""
        return sum(item.parameter.gradient_bytes for item in contributions if self._is_added(item))

    def _is_added(self, item: Contribution) -> bool:
        return item.completes and item.parameter.name in self._delivered

    def make(self, item: Contribution) -> None:
        """A call has contributed the gradient of a parameter."""
        parameter, name = item.parameter, item.parameter.name
        if name not in self._made and not self._is_added(item):
            self._machine.allocate(Stream.COMPUTE, _GRADIENTS, parameter.gradient_bytes)
            self._summed.add(name)
        self._made.add(name)
        if not item.completes:
            return
        if name in self._delivered and name in self._summed:
            self._machine.free(Stream.COMPUTE, _GRADIENTS, parameter.gradient_bytes)
        self._summed.discard(name)
        self._delivered[name] = parameter

    def accumulate(self) -> None:
        """Add new gradients to those that earlier post-backwards kept in the element type of the reduction."""
        added = [name for name in self._delivered if name in self._accumulated]
        parameters = [self._delivered.pop(name) for name in added]
        if parameters:
            size_bytes = sum(parameter.gradient_bytes for parameter in parameters)
            kept_bytes = sum(parameter.accumulated_bytes for parameter in parameters)
            self._machine.run(Stream.COMPUTE, self._comm.costs.copy_ns(size_bytes + kept_bytes, kept_bytes))
            self._machine.free(Stream.COMPUTE, _GRADIENTS, size_bytes)

    def keep_in_reduce_dtype(self) -> None:
        """Cast what a post-backward without reduction leaves; gradients of the right type stay where they are."""
        cast = [
            [parameter for parameter in parameters if parameter.reduced is not parameter.gathered]
            for _, parameters in self._by_flat(self._delivered)
        ]
        for parameters in cast:
            made_bytes = sum(parameter.accumulated_bytes for parameter in parameters)
            self._machine.allocate(Stream.COMPUTE, _GRADIENTS, made_bytes)
            size_bytes = sum(parameter.gradient_bytes for parameter in parameters)
            self._machine.free(Stream.COMPUTE, _GRADIENTS, size_bytes)
            for parameter in parameters:
                self._accumulated[parameter.name] = self._delivered.pop(parameter.name)
        if any(cast):
            read_bytes = sum(parameter.gradient_bytes for parameters in cast for parameter in parameters)
            written_bytes = sum(parameter.accumulated_bytes for parameters in cast for parameter in parameters)
            self._machine.run(Stream.COMPUTE, self._comm.costs.copy_ns(read_bytes, written_bytes))

    def _by_flat(self, names: Container[str]) -> Iterator[tuple[ShardedParameter, list[ShardedParameter]]]:
        """What FSDP2 takes for parameters, each with those of its parameters that are among the names."""
        for flat in self._unit.flats:
            members = [one for one in self._unit.parameters if self._unit.flat_of[one.name] is flat]
            yield flat, [parameter for parameter in members if parameter.name in names]

    def take(self, *, fills_unused: bool) -> list[FullGradient]:
        """Hand over all gradients; with `reduce_scatter_unused_params` zeros stand for those that are missing.

        Args:
            fills_unused: the group has been gathered, without which FSDP2 makes no zeros.
        """
        taken: list[FullGradient] = []
        zeros_bytes = 0
        there = {*self._accumulated, *self._delivered}
        for flat, parameters in self._by_flat(there):
            size_bytes = 0
            for parameter in parameters:
                if self._accumulated.pop(parameter.name, None):
                    size_bytes += parameter.accumulated_bytes
                elif self._delivered.pop(parameter.name, None):
                    size_bytes += parameter.gradient_bytes
            if parameters:
                taken.append(FullGradient(parameter=flat, size_bytes=size_bytes))
            elif fills_unused and self._comm.reduces_unused and flat.requires_grad:
                self._machine.allocate(Stream.COMPUTE, _GRADIENTS, flat.gradient_bytes)
                taken.append(FullGradient(parameter=flat, size_bytes=flat.gradient_bytes))
                zeros_bytes += flat.gradient_bytes
        if zeros_bytes:
            self._machine.run(Stream.COMPUTE, self._comm.costs.copy_ns(0, zeros_bytes))
        return taken
