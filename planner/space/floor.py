"""A bound on the step time of a global choice that needs no program: sums over its units and calls.

For each micro-batch, with C the computation of forward and backward, copies out of gathers and into reductions
among it, A the gathers that forward needs, A0 that of the root, R and L the reduce-scatters and all-reduces, R0 and
L0 those of the root, and X what recomputation is unavoidable:

    forward  >= max(A0 + C_forward, sum of A)
    backward >= max(C_backward + X + R0 + L0, sum of R (+ sum of L, where they share the link), sum of L)

The loss needs every gather of the forward; every reduction needs a gradient, which comes after the loss; the root
reduces last. X is the optimum of a knapsack in fractions: at the end of the forward everything that blocks keep is
alive beside the shards, the optimizer state, the gathered root and what earlier micro-batches left.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from planner.costs import CostModel
from planner.program.build.calls import liveness_of
from planner.program.inputs import micro_batches
from planner.program.step import KEEP, Activation, Knobs, StepInputs
from planner.program.units import ROOT


def floor_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, num_micro_batches: int) -> int | None:
    """No plan of the global choice has a faster step, the optimizer left out; None where none can fit.

    `knobs` may be those of any setting: nothing that a setting changes is counted.
    """
    times = [(_micro_batch_ns(inputs, place, costs), num) for place, num in micro_batches(knobs, num_micro_batches)]
    known = [(time, num) for time, num in times if time is not None]
    return sum(num * time for time, num in known) if len(known) == len(times) else None


def floor_bytes(inputs: StepInputs, knobs: Knobs, num_micro_batches: int) -> int:
    """No plan of the global choice needs less memory at the end of the forward."""
    return max(
        _resident_bytes(inputs, place) + sum(num * hull[-1][0] for hull, num in _hulls(inputs, place, None))
        for place, _ in micro_batches(knobs, num_micro_batches)
    )


def _micro_batch_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int | None:
    left = costs.budget.budget_bytes - _resident_bytes(inputs, knobs)
    recompute_ns = _least_recompute_ns(inputs, knobs, costs, left)
    if recompute_ns is None:
        return None
    calls = Counter(call.kind for call in inputs.partition.model.calls)
    kinds = inputs.partition.model.kinds
    forward_ns = sum(num * costs.forward_ns(kind) for kind, num in calls.items())
    backward_ns = sum(
        num * costs.backward_ns(kind) for kind, num in calls.items() if kinds[kind].output_requires_grad
    )
    sizes = inputs.sizes
    for unit in _running(inputs):
        if knobs.shard > 1 and not knobs.starts_gathered(unit):
            forward_ns += costs.copy_ns(sizes[unit].gathered, sizes[unit].gathered)
    for unit in _reducing(inputs, knobs):
        backward_ns += costs.copy_ns(sizes[unit].gradients, sizes[unit].reduce_input)
    gathers = {unit: _gather_ns(inputs, knobs, costs, unit) for unit in _running(inputs)}
    reduces = {unit: costs.reduce_scatter_ns(sizes[unit].reduce_input) for unit in _reducing(inputs, knobs)}
    alls = {unit: costs.all_reduce_ns(sizes[unit].reduce_output) for unit in _reducing(inputs, knobs)}
    if knobs.shard == 1:
        reduces = dict.fromkeys(reduces, 0)
    if not knobs.all_reduces:
        alls = dict.fromkeys(alls, 0)
    all_scatters, all_alls = sum(reduces.values()), sum(alls.values())
    shared = all_scatters + all_alls if costs.all_reduce_shares_link else max(all_scatters, all_alls)
    at_end = reduces.get(ROOT, 0) + alls.get(ROOT, 0)
    return max(gathers.get(ROOT, 0) + forward_ns, sum(gathers.values())) + max(
        backward_ns + recompute_ns + at_end, shared
    )


def _running(inputs: StepInputs) -> set[int]:
    parts = inputs.partition
    return {unit for unit in {ROOT, *(run.unit for run in parts.passes)} if parts.units[unit].parameters}


def _reducing(inputs: StepInputs, knobs: Knobs) -> set[int]:
    return {unit for unit in _running(inputs) if inputs.sizes[unit].reduce_input} if knobs.reduces else set()


def _gather_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, unit: int) -> int:
    if knobs.shard == 1 or knobs.starts_gathered(unit):
        return 0
    return costs.all_gather_ns(inputs.sizes[unit].gathered)


def _resident_bytes(inputs: StepInputs, knobs: Knobs) -> int:
    """Alive at the end of the forward, whatever is decided."""
    sizes = inputs.sizes
    total = inputs.optimizer_bytes + inputs.partition.model.buffers_bytes + sizes[ROOT].gathered
    total += sum(size.stored for size in sizes)
    total += inputs.partition.model.inputs_bytes.at(inputs.micro_batch, inputs.sequence)
    if knobs.finds_sharded_gradients:
        total += sum(size.sharded_gradients for size in sizes)
    if knobs.finds_whole_gradients:
        total += sum(s.whole_gradients if s.accumulates_apart else s.gradients for s in sizes)
    if knobs.finds_partial_sums:
        total += sum(size.reduce_output for size in sizes)
    return total


def _least_recompute_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, left: int) -> int | None:
    """Fractional knapsack over the calls that may recompute; None where even the leanest choice keeps too much."""
    steps: list[tuple[float, int, int]] = []
    spent = 0.0
    for hull, num in _hulls(inputs, knobs, costs):
        left -= num * hull[0][0]
        spent += num * hull[0][1]
        for (kept, cost), (less, more) in pairwise(hull):
            steps.append(((more - cost) / (kept - less), num * (kept - less), num * (more - cost)))
    for _, freed, cost in sorted(steps):
        if left >= 0:
            break
        share = min(1.0, -left / freed)
        left += int(freed) if share == 1.0 else -left
        spent += share * cost
    return None if left < 0 else int(spent)


def _hulls(
    inputs: StepInputs, knobs: Knobs, costs: CostModel | None
) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Of each kind of call what it may keep (bytes) and recomputes then (ns, 0 without costs), and their number."""
    counted: Counter[tuple[str, tuple[Activation, ...]]] = Counter()
    for call, entry in enumerate(inputs.partition.model.calls):
        choice = knobs.activation.get(call)
        counted[entry.kind, (KEEP,) if choice is None else tuple(activation for activation, _ in choice)] += 1
    for (name, options), num in counted.items():
        kind = inputs.partition.model.kinds[name]
        points = [
            (
                liveness_of(kind, option).kept_bytes(inputs.micro_batch, inputs.sequence),
                0 if option == KEEP or costs is None else costs.recompute_ns(name, option.saved_ops),
            )
            for option in options
        ]
        yield _lower_hull(points), num


def _lower_hull(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Points (kept, spent) from the cheapest to the leanest that no mixture of two others beats."""
    hull: list[tuple[int, int]] = []
    for kept, spent in sorted(points, key=lambda point: (point[1], point[0])):
        if hull and kept >= hull[-1][0]:
            continue
        while len(hull) > 1:
            (k0, s0), (k1, s1) = hull[-2], hull[-1]
            if (s1 - s0) * (k0 - kept) < (spent - s0) * (k0 - k1):
                break
            hull.pop()
        hull.append((kept, spent))
    return hull
