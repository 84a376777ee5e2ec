"""A step whose numbers stay exact: integers up to 2^53 - 1, as in every document of the contract."""

from collections.abc import Sequence

from planner.program.events import Allocate, Operation, Program, Touch
from planner.schema import InconsistentRequest, SourcedNumber
from planner.schema.base import MAX_INTEGER


def require_exact(
    program: Program, sources: Sequence[SourcedNumber], *, num_micro_batches: int, optimizer_ns: int
) -> None:
    """Refuse a step that may take more nanoseconds or bytes than the contract can state.

    Raises:
        InconsistentRequest: it may; the message names the largest part.
    """
    for number in sources:
        if number.value > MAX_INTEGER:
            raise InconsistentRequest(
                f"{number.name} comes out as {number.value:.3e} {number.unit}, beyond what is exact (2^53 - 1); "
                "correct the sizes and rates behind it"
            )
    times = {
        f"{event.kind.value} of {event.owner}": event.duration_ns + event.launches * program.launch_ns
        for event in program.events
        if isinstance(event, Operation)
    }
    total_ns = num_micro_batches * sum(
        event.duration_ns + event.launches * program.launch_ns
        for event in program.events
        if isinstance(event, Operation)
    )
    _require("time", "ns", total_ns + optimizer_ns, {**times, "optimizer step": optimizer_ns})
    sizes = {event.moment: event.size_bytes for event in program.events if isinstance(event, Allocate | Touch)}
    allocated = sum(event.size_bytes for event in program.events if isinstance(event, Allocate))
    _require("memory", "bytes", allocated + max(sizes.values(), default=0), sizes)


def _require(what: str, unit: str, total: int, parts: dict[str, int]) -> None:
    if total <= MAX_INTEGER:
        return
    largest = max(parts, key=lambda name: parts[name])
    raise InconsistentRequest(
        f"the {what} of a step may reach {total:.3e} {unit}, beyond what is exact (2^53 - 1); the largest part is "
        f"{largest} with {parts[largest]:.3e} {unit}; correct the sizes and rates behind it, or lower "
        "workload.micro_batch, sequence or global_batch"
    )
