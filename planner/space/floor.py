"""A bound on the step time of a global choice that needs no program: sums over its units and calls.

For each micro-batch, units in the order of their forward, with f_k and b_k the computation from where unit k begins
on in forward, and until it ends in backward (copies out of gathers and into reductions among it), A_k its gather,
R_k its reduce-scatter and L_k its all-reduce, X what is recomputed, Y what is gathered again, Z the copies of that:

    forward  >= A_1 + .. + A_k + f_k                                            for each k
    backward >= b_k + R_k + .. + R_1 (and so with L), b_1 + X + Z + R_1 + L_1   for each k
    backward >= sum of R + Y' (+ sum of L, where they share the link)
    forward  >= copies of activations to the host, backward >= those back
    both     >= what the CPU has to launch

The loss needs every gather of the forward; every reduction needs a gradient, which comes after the loss. Y' is Y
without as many gathers as backward prefetches at most: those that it begins with may run beside the loss, since the
CPU is ahead and they wait for no copy. X, Y and Z are bounded by memory: at the end of the forward, and again when
the first unit reduces, all that blocks keep and all that stays gathered (with the communicators of partial
resharding) is alive beside the shards, the optimizer state, the gathered root and what earlier micro-batches left;
and the pools of gathers and reductions are reserved at their own peaks, whenever these are. The least backward time
is that at which the leanest mixtures, taken in fractions, fit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from planner.costs import CostModel
from planner.costs.mesh import MeshCosts
from planner.program.build.calls import liveness_of
from planner.program.inputs import micro_batches
from planner.program.step import KEEP, TO_HOST, Activation, Knobs, Resharding, StepInputs
from planner.program.units import ROOT
from planner.space.candidate import BACKWARD_DEPTHS

MOST_EARLY = max(1, *BACKWARD_DEPTHS)
"""Units that backward may gather ahead; implicit prefetch gathers one."""
Point = tuple[int, int]
"""(bytes kept, ns spent for keeping no more)."""


def floor_ns(
    inputs: StepInputs, knobs: Knobs, costs: CostModel, num_micro_batches: int, budget_bytes: int
) -> int | None:
    """No plan of the global choice has a faster step, the optimizer left out; None where none can fit.

    `knobs` may be those of any setting: nothing that a setting changes is counted.
    """
    total = 0
    places = micro_batches(knobs, num_micro_batches)
    left = budget_bytes - _other_pools_bytes(inputs, [place for place, _ in places])
    for place, num in places:
        time = _micro_batch_ns(inputs, place, costs, left)
        if time is None:
            return None
        total += num * time
    return total


def floor_bytes(inputs: StepInputs, knobs: Knobs, costs: CostModel, num_micro_batches: int) -> int:
    """No plan of the global choice needs less memory."""
    places = [place for place, _ in micro_batches(knobs, num_micro_batches)]
    return _other_pools_bytes(inputs, places) + max(
        _resident_bytes(inputs, place) + _Mixture.of(_kept_by_calls(inputs, place, costs)).leanest_bytes
        for place in places
    )


def _other_pools_bytes(inputs: StepInputs, places: Sequence[Knobs]) -> int:
    """Reserved for gathers (the largest unit's buffer), and for sharded gradients where any are made."""
    gathered = [
        inputs.sizes[unit].gathered
        for knobs in places
        for unit, _ in _order(inputs)
        if knobs.shard(unit) > 1 and not knobs.starts_gathered(unit)
    ]
    reduces = any(knobs.reduces for knobs in places)
    shards = sum(inputs.sizes[u].sharded_gradients for u, _ in _order(inputs) if not places[0].is_on_host(u))
    return max(gathered, default=0) + reduces * shards


def _micro_batch_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, left_bytes: int) -> int | None:
    link_ns, all_reduces_ns, compute_ns, least_ns = _backward_sums(inputs, knobs, costs)
    again = list(_kept_by_units(inputs, knobs, costs))
    apart = knobs.separate_reduce_scatter_group and costs.concurrent_collectives
    backward_ns = _least_backward_ns(
        compute_ns,
        (0 if apart else link_ns) - _early_ns(again),
        _Mixture.of(_kept_by_calls(inputs, knobs, costs)),
        _Mixture.of(again),
        _Mixture.of([*_kept_by_calls(inputs, knobs, costs), *_kept_by_units(inputs, knobs, costs, copies=True)]),
        _Room(left_bytes - _resident_bytes(inputs, knobs), *_first_reduction(inputs, knobs)),
    )
    if backward_ns is None:
        return None
    out_ns, in_ns = _activation_copies_ns(inputs, knobs, costs)
    forward_ns = max(_forward_ns(inputs, knobs, costs), out_ns)
    on_device_ns = forward_ns + max(backward_ns, least_ns, link_ns, all_reduces_ns, in_ns)
    return max(on_device_ns, costs.launch_ns * _num_launches(inputs, knobs, costs))


def _early_ns(again: Iterable[tuple[Sequence[Point], int]]) -> int:
    """The longest gathers that may begin before backward does."""
    longest = sorted(
        max(spent for _, spent in points) for points, num in again for _ in range(min(num, MOST_EARLY))
    )
    return sum(longest[-MOST_EARLY:])


def _activation_copies_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> tuple[int, int]:
    """Of activations to the host, which the next call of the forward waits for, and back, which backward does."""
    model = inputs.partition.model
    sizes = [
        liveness_of(model.kinds[model.calls[call].kind], KEEP).kept_bytes(inputs.micro_batch, inputs.sequence)
        for call, choice in knobs.activation.items()
        if all(activation == TO_HOST for activation, _ in choice)
    ]
    return sum(map(costs.device_to_host_ns, sizes)), sum(map(costs.host_to_device_ns, sizes))


def _num_launches(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int:
    """Kernels that the CPU launches at the least: of calls, of gathers (3 each), of reductions (2 each)."""
    kinds = inputs.partition.model.kinds
    launches = 0
    for call in inputs.partition.model.calls:
        launches += costs.forward_kernels(call.kind)
        launches += costs.backward_kernels(call.kind) if kinds[call.kind].output_requires_grad else 0
    for unit, _ in _order(inputs):
        launches += 3 * (knobs.shard(unit) > 1 and not knobs.starts_gathered(unit))
        launches += 2 * (knobs.shard(unit) > 1 and knobs.reduces and inputs.sizes[unit].reduce_input > 0)
    return launches


def _order(inputs: StepInputs) -> list[tuple[int, int]]:
    """Units in the order of their forward, each with the call that it begins at."""
    parts = inputs.partition
    found = {ROOT: 0}
    for run in parts.passes:
        found.setdefault(run.unit, run.first)
    return [(unit, first) for unit, first in found.items() if parts.units[unit].parameters]


def _forward_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int:
    calls = [costs.forward_ns(call.kind) for call in inputs.partition.model.calls]
    left_ns = [*accumulate(reversed(calls), initial=0)][::-1]
    order = [
        (unit, first) for unit, first in _order(inputs) if knobs.shard(unit) > 1 and not knobs.starts_gathered(unit)
    ]
    sizes = [inputs.sizes[unit].gathered for unit, _ in order]
    copies_ns = sum(costs.copy_ns(size, size) for size in sizes)
    longest, gathered_ns = left_ns[0] + copies_ns, 0
    for size, (unit, first) in zip(sizes, order, strict=True):
        gathered_ns += costs.collectives(knobs.meshes[unit]).all_gather_ns(size)
        longest = max(longest, gathered_ns + copies_ns + left_ns[first])
        copies_ns -= costs.copy_ns(size, size)
    return longest


def _backward_sums(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> tuple[int, int, int, int]:
    """Reduce-scatters (with all-reduces where they share the link), all-reduces, computation, least time of all."""
    sizes, kinds = inputs.sizes, inputs.partition.model.kinds
    apart = knobs.separate_reduce_scatter_group and costs.concurrent_collectives
    shares_link = costs.all_reduce_shares_link and not apart
    calls = [
        costs.backward_ns(call.kind) if kinds[call.kind].output_requires_grad else 0
        for call in inputs.partition.model.calls
    ]
    done_ns = [*accumulate(reversed(calls), initial=0)][::-1]
    """From the backward of each call, that of it included, to the end of its own."""
    scatters_ns = alls_ns = least_ns = copies_ns = 0
    order = _order(inputs)
    total_copies_ns = sum(_gradient_copies_ns(inputs, knobs, costs, unit) for unit, _ in order)
    for unit, first in order:
        copies_ns += _gradient_copies_ns(inputs, knobs, costs, unit)
        if not (knobs.reduces and sizes[unit].reduce_input):
            continue
        scatter_ns, all_reduce_ns = _reduction_ns(inputs, knobs, costs, unit)
        scatters_ns += scatter_ns
        alls_ns += all_reduce_ns
        before_ns = done_ns[0 if unit == ROOT else first] + total_copies_ns - copies_ns
        last_ns = scatters_ns + (alls_ns if shares_link else 0)
        least_ns = max(least_ns, before_ns + last_ns, before_ns + alls_ns)
    at_end_ns = 0
    if knobs.reduces and sizes[ROOT].reduce_input:
        at_end_ns = sum(_reduction_ns(inputs, knobs, costs, ROOT))
    link_ns = scatters_ns + (alls_ns if shares_link else 0)
    return link_ns, alls_ns, done_ns[0] + total_copies_ns + at_end_ns, least_ns


def _reduction_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, unit: int) -> tuple[int, int]:
    """Reduce-scatter and all-reduce of a unit."""
    size, collectives = inputs.sizes[unit], costs.collectives(knobs.meshes[unit])
    return (
        collectives.reduce_scatter_ns(size.reduce_input) if knobs.shard(unit) > 1 else 0,
        collectives.all_reduce_ns(size.reduce_output) if knobs.all_reduces(unit) else 0,
    )


def _gradient_copies_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, unit: int) -> int:
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


def _first_reduction(inputs: StepInputs, knobs: Knobs) -> tuple[int, int, int]:
    """Of the first unit that reduces: what that needs, what its calls keep at most, what it has gathered."""
    parts, sizes = inputs.partition, inputs.sizes
    last = max(parts.passes, key=lambda run: run.last, default=None)
    if last is None or not knobs.reduces or knobs.finds_whole_gradients or not sizes[last.unit].gradients:
        return 0, 0, 0
    own = sum(
        liveness_of(parts.model.kinds[call.kind], KEEP).kept_bytes(inputs.micro_batch, inputs.sequence)
        for call in parts.model.calls[last.first :]
    )
    return sizes[last.unit].gradients + sizes[last.unit].reduce_input, own, sizes[last.unit].gathered


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for what calls and units keep, at the end of the forward and at the first reduction."""

    left_bytes: int
    reduction_bytes: int
    own_kept_bytes: int
    own_gathered_bytes: int

    def holds(self, kept: int, gathered: int) -> bool:
        """Whether both moments have room for this."""
        others = max(0, kept - self.own_kept_bytes) + max(0, gathered - self.own_gathered_bytes)
        return max(kept + gathered, others + self.reduction_bytes) <= self.left_bytes

    def holds_together(self, total: int) -> bool:
        """The same for a sum, whatever its parts are."""
        others = max(0, total - self.own_kept_bytes - self.own_gathered_bytes)
        return max(total, others + self.reduction_bytes) <= self.left_bytes


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Lower convex hull of what a set of calls or units can keep for what time."""

    kept_bytes: int
    """Where nothing is spent that need not be."""
    spent_ns: int
    segments: tuple[tuple[int, int], ...]
    """(bytes freed, ns spent), the cheapest bytes first."""

    @classmethod
    def of(cls, options: Iterable[tuple[Sequence[Point], int]]) -> "_Mixture":
        """Of points, each set of them so many times."""
        kept = spent = 0
        segments: list[tuple[int, int]] = []
        for points, num in options:
            hull = _lower_hull(points)
            kept += num * hull[0][0]
            spent += num * hull[0][1]
            segments.extend(
                (num * (more - less), num * (dear - cheap)) for (more, cheap), (less, dear) in pairwise(hull)
            )
        return cls(kept, spent, tuple(sorted(segments, key=lambda segment: segment[1] / segment[0])))

    @property
    def leanest_bytes(self) -> int:
        """Whatever is spent."""
        return self.kept_bytes - sum(freed for freed, _ in self.segments)

    def least_bytes(self, ns: int) -> int | None:
        """Kept when at most so much is spent; None where that is not enough."""
        ns -= self.spent_ns
        if ns < 0:
            return None
        kept = self.kept_bytes
        for freed, cost in self.segments:
            if cost > ns:
                return kept - freed * ns // cost
            kept -= freed
            ns -= cost
        return kept

    @property
    def most_ns(self) -> int:
        """Spent when as little as possible is kept."""
        return self.spent_ns + sum(cost for _, cost in self.segments)


def _least_backward_ns(
    compute_ns: int, link_ns: int, calls: _Mixture, units: _Mixture, together: _Mixture, room: _Room
) -> int | None:
    """By bisection: longer backwards leave room to keep less.

    Two relaxations must both fit: calls spend computation and units the link, each on its own; or both spend
    computation together (`together`), units for their copies alone.
    """

    def fits(backward_ns: int) -> bool:
        kept = calls.least_bytes(backward_ns - compute_ns)
        gathered = units.least_bytes(backward_ns - link_ns)
        total = together.least_bytes(backward_ns - compute_ns)
        if kept is None or gathered is None or total is None:
            return False
        return room.holds(kept, gathered) and room.holds_together(total)

    low = max(compute_ns + together.spent_ns, link_ns + units.spent_ns)
    high = max(compute_ns + together.most_ns, link_ns + units.most_ns)
    if not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _resident_bytes(inputs: StepInputs, knobs: Knobs) -> int:
    """Alive in the pool of the computation at the end of the forward, whatever is decided."""
    sizes = inputs.sizes
    total = inputs.optimizer_bytes + inputs.partition.model.buffers_bytes + sizes[ROOT].gathered
    total += sum(size.stored for unit, size in enumerate(sizes) if not knobs.is_on_host(unit))
    total += inputs.partition.model.inputs_bytes.at(inputs.micro_batch, inputs.sequence)
    if knobs.finds_whole_gradients:
        total += sum(s.whole_gradients if s.accumulates_apart else s.gradients for s in sizes)
    return total


def _kept_by_calls(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> Iterator[tuple[Sequence[Point], int]]:
    counted: Counter[tuple[str, tuple[Activation, ...]]] = Counter()
    for call, entry in enumerate(inputs.partition.model.calls):
        choice = knobs.activation.get(call)
        counted[entry.kind, (KEEP,) if choice is None else tuple(activation for activation, _ in choice)] += 1
    for (name, options), num in counted.items():
        kind = inputs.partition.model.kinds[name]
        yield (
            [
                (
                    0
                    if option == TO_HOST
                    else liveness_of(kind, option).kept_bytes(inputs.micro_batch, inputs.sequence),
                    costs.recompute_ns(name, option.saved_ops)
                    if option not in (KEEP, TO_HOST) and kind.output_requires_grad
                    else 0,
                )
                for option in options
            ],
            num,
        )


def _kept_by_units(
    inputs: StepInputs, knobs: Knobs, costs: CostModel, *, copies: bool = False
) -> Iterator[tuple[Sequence[Point], int]]:
    """Of units with a backward, which gathers again what forward did not leave: its gathers, or its copies."""
    parts = inputs.partition
    counted: Counter[tuple[int, MeshCosts, tuple[Resharding, ...]]] = Counter()
    for unit in parts.with_backward - {ROOT}:
        if not parts.units[unit].parameters:
            continue
        options = tuple(value for value, _ in knobs.reshard[unit])
        counted[inputs.sizes[unit].gathered, costs.collectives(knobs.meshes[unit]), options] += 1
    for (size, collectives, options), num in counted.items():
        yield [_resharded(size, option, collectives, costs, copies=copies) for option in options], num


def _resharded(size: int, option: Resharding, collectives: MeshCosts, costs: CostModel, *, copies: bool) -> Point:
    if option is False:
        return size, 0
    if collectives.mesh.shard == 1:
        return 0, 0
    copy_ns = costs.copy_ns(size, size)
    if option is True:
        return 0, copy_ns if copies else collectives.all_gather_ns(size)
    kept = size // option + costs.partial_reshard_bytes(option)
    return kept, copy_ns if copies else collectives.all_gather_ns(size, option)


def _lower_hull(points: Sequence[Point]) -> list[Point]:
    """Points from the cheapest to the leanest that no mixture of two others beats."""
    hull: list[Point] = []
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
