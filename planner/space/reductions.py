"""What reductions of gradients take at the least, and how long the CPU waits for them."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.costs import CostModel
from planner.program.step import Knobs, StepInputs
from planner.program.units import ROOT
from planner.space.room import reduces_in_backward, units_in_order


class Reduction(NamedTuple):
    """Of a unit; a copy of its gradients to the host comes after it on the same stream."""

    scatter_ns: int
    after_scatter_ns: int
    all_reduce_ns: int
    after_all_reduce_ns: int


def reduction(inputs: StepInputs, knobs: Knobs, costs: CostModel, unit: int) -> Reduction:
    """What the gradients of a unit take in a micro-batch that reduces."""
    size, collectives = inputs.sizes[unit], costs.collectives(knobs.meshes[unit])
    is_replicated, all_reduces = knobs.replicate(unit) > 1, knobs.all_reduces(unit)
    copied = knobs.is_on_host(unit) and (all_reduces or not is_replicated)
    copy_ns = costs.device_to_host_ns(size.sharded_gradients) if copied else 0
    return Reduction(
        scatter_ns=collectives.reduce_scatter_ns(size.reduce_input) if knobs.shard(unit) > 1 else 0,
        after_scatter_ns=0 if is_replicated else copy_ns,
        all_reduce_ns=collectives.all_reduce_ns(size.reduce_output) if all_reduces else 0,
        after_all_reduce_ns=copy_ns if is_replicated else 0,
    )


def reductions_ns(each: Sequence[Reduction], *, shares_link: bool) -> int:
    """The least time of some units' reductions, from when the first can begin: of each stream, and of the link."""
    scatters_ns = sum(one.scatter_ns for one in each)
    alls_ns = sum(one.all_reduce_ns for one in each)
    return max(
        scatters_ns + sum(one.after_scatter_ns for one in each) + min(one.all_reduce_ns for one in each),
        min(one.scatter_ns for one in each) + alls_ns + sum(one.after_all_reduce_ns for one in each),
        scatters_ns + alls_ns if shares_link else 0,
    )


def host_waits_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> dict[int, int]:
    """Of units whose gradients are added to others on the host, for which the CPU waits: reduction and copy."""
    return {
        unit: sum(reduction(inputs, knobs, costs, unit))
        for unit, _ in units_in_order(inputs)
        if knobs.reduces
        and inputs.sizes[unit].reduce_input
        and knobs.is_on_host(unit)
        and knobs.finds_sharded_gradients(unit)
    }


def reduces_early(inputs: StepInputs, unit: int) -> bool:
    """Whether a unit reduces when the backward of its first pass is done, rather than after all of the backward."""
    run = next((run for run in inputs.partition.passes if run.unit == unit), None)
    return unit != ROOT and run is not None and reduces_in_backward(inputs, run)


def gradient_copies_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, unit: int) -> int:
    """Copies that the compute stream makes of a unit's gradients: into sums, and into the reduction."""
    size = inputs.sizes[unit]
    duration, whole = 0, size.gradients
    if size.accumulates_apart and size.gradients:
        if knobs.finds_whole_gradients:
            duration += costs.copy_ns(size.gradients + size.whole_gradients, size.whole_gradients)
            whole = size.whole_gradients
        elif not knobs.reduces:
            duration += costs.copy_ns(size.gradients, size.whole_gradients)
    if knobs.reduces and size.reduce_input:
        duration += costs.copy_ns(whole, size.reduce_input)
    return duration
