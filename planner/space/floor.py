"""A bound on the step time of a global choice that needs no program: sums over its units and calls.

For each micro-batch, units in the order of their forward, with f_k and b_k the computation from where unit k begins
on in forward, and until it ends in backward (copies out of gathers and into reductions among it), A_k its gather,
R_k its reduce-scatter and L_k its all-reduce, X what is recomputed, Y what is gathered again, Z the copies of that,
and of offloaded units H_k the copy of shards to the device and D_k that of gradients to the host (below part of R_k
or L_k, on whose stream it is):

    forward  >= A_1 + .. + A_k + f_k, H_1 + .. + H_k + A_k + f_k                for each k
    backward >= b_k + R_k + .. + R_1 + L', b_k + R' + L_k + .. + L_1            for each k (R', L' the least)
    backward >= that + X + Z of all that comes before
    backward >= b_n + sum of R + Y' (+ sum of L, where they share the link)     for the first n that reduces
    forward  >= copies of activations to the host, backward >= those back
    both     >= what the CPU has to launch

Where gradients are added to others on the host the CPU waits for D_k before it goes on: then R_k and D_k are among
b_j of every unit j whose backward comes later.

The loss needs every gather of the forward; every reduction needs a gradient, which comes after the loss. Y' is Y
without as many gathers as are issued before the first reduction, prefetched ones among them: the link takes all in
order of issue. Or, without b_n, as many as backward prefetches: they may run beside the loss, since the CPU is
ahead and they wait for no copy. X, Y and Z are bounded by memory: what blocks keep and what stays gathered (and the
communicators of partial resharding) is alive beside all else at some moments (`planner.space.room`). The least
backward time is that at which the leanest mixtures, taken in fractions, fit: of calls and of units, or of both
where they spend a weighted mean of computation and link.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from planner.costs import CostModel
from planner.costs.mesh import MeshCosts
from planner.program.inputs import micro_batches
from planner.program.step import KEEP, TO_HOST, Activation, Knobs, Resharding, StepInputs
from planner.program.units import ROOT
from planner.space.mixture import WEIGHTS, Alike, Mixture, Option
from planner.space.prefetch import BACKWARD_DEPTHS
from planner.space.reductions import (
    Reduction,
    gradient_copies_ns,
    host_waits_ns,
    reduces_early,
    reduction,
    reductions_ns,
)
from planner.space.room import (
    Moment,
    gathered_bytes,
    kept_bytes,
    moments,
    options_of,
    other_pools_bytes,
    reduces_in_backward,
    resident_bytes,
    units_in_order,
)

MOST_EARLY = max(1, *BACKWARD_DEPTHS)
"""Units that backward may gather ahead; implicit prefetch gathers one."""


def floor_ns(
    inputs: StepInputs,
    knobs: Knobs,
    costs: CostModel,
    num_micro_batches: int,
    budget_bytes: int,
    *,
    on_host: tuple[bool, ...] | None = None,
) -> int | None:
    """No plan of the global choice has a faster step, the optimizer left out; None where none can fit.

    Args:
        inputs: of the units.
        knobs: those of any setting: nothing that a setting changes is counted.
        costs: of the mesh.
        num_micro_batches: per step.
        budget_bytes: bound on the peaks of the pools.
        on_host: units that certainly are in host memory, where those of `knobs` only may be; of these the memory is
            counted there, and no copy.
    """
    total = 0
    places = micro_batches(knobs, num_micro_batches)
    left = budget_bytes - other_pools_bytes(inputs, [place for place, _ in places], costs)
    for place, num in places:
        room = _Room(left - resident_bytes(inputs, place), moments(inputs, place, costs))
        certain = place if on_host is None else replace(place, on_host=on_host)
        time = _micro_batch_ns(inputs, certain, costs, room)
        if time is None:
            return None
        total += num * time
    return total


def floor_bytes(inputs: StepInputs, knobs: Knobs, costs: CostModel, num_micro_batches: int) -> int:
    """No plan of the global choice needs less memory."""
    places = [place for place, _ in micro_batches(knobs, num_micro_batches)]
    return other_pools_bytes(inputs, places, costs) + max(
        resident_bytes(inputs, place) + moment.least_needed(kept.leanest_bytes)
        for place in places
        for kept in (Mixture.of(_kept_by_calls(inputs, place, costs), WEIGHTS),)
        for moment in moments(inputs, place, costs)
    )


def _micro_batch_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel, room: "_Room") -> int | None:
    least = Mixture.of(_kept_by_calls(inputs, knobs, costs), WEIGHTS).leanest_bytes
    if not room.holds_least(least):
        return None
    sums = _backward_sums(inputs, knobs, costs)
    apart = knobs.separate_reduce_scatter_group and costs.concurrent_collectives
    backward_ns = max(sums.link_ns, sums.all_reduces_ns)
    for tail in {sums.last, sums.longest}:
        calls = list(_kept_by_calls(inputs, knobs, costs, tail.first))
        units = list(_kept_by_units(inputs, knobs, costs, tail.first))
        link_ns = -_early_ns(units, MOST_EARLY)
        if not apart:
            begun = sums.num_begun + MOST_EARLY
            link_ns = sums.link_ns + max(link_ns, sums.first_ns - _early_ns(units, begun))
        least_ns = _least_backward_ns(tail.compute_ns, link_ns, calls, units, room)
        if least_ns is None:
            return None
        backward_ns = max(backward_ns, least_ns)
    out_ns, in_ns = _activation_copies_ns(inputs, knobs, costs)
    forward_ns = max(_forward_ns(inputs, knobs, costs), out_ns)
    on_device_ns = forward_ns + max(backward_ns, in_ns)
    return max(on_device_ns, costs.launch_ns * _num_launches(inputs, knobs, costs))


def _early_ns(units: Iterable[Alike], most: int) -> int:
    """The longest gathers, so many of them."""
    gathers = sorted(
        max(option.link_ns for option in options) for options, num in units for _ in range(min(num, most))
    )
    return sum(gathers[-most:])


def _activation_copies_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> tuple[int, int]:
    """Of activations to the host, which the next call of the forward waits for, and back, which backward does."""
    model = inputs.partition.model
    sizes = [
        kept_bytes(inputs, model.kinds[model.calls[call].kind], KEEP)
        for call, choice in knobs.activation.items()
        if all(activation == TO_HOST for activation, _ in choice)
    ]
    return sum(map(costs.device_to_host_ns, sizes)), sum(map(costs.host_to_device_ns, sizes))


def _num_launches(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int:
    """Kernels that the CPU launches at the least: of calls, of gathers (3 each, 2 in place), of reductions (2)."""
    kinds = inputs.partition.model.kinds
    launches = 0
    for call in inputs.partition.model.calls:
        launches += costs.forward_kernels(call.kind)
        launches += costs.backward_kernels(call.kind) if kinds[call.kind].output_requires_grad else 0
    for unit, _ in units_in_order(inputs):
        per_gather = 2 if knobs.is_aliased(unit) else 3
        launches += per_gather * (knobs.shard(unit) > 1 and not knobs.starts_gathered(unit))
        launches += 2 * (knobs.shard(unit) > 1 and knobs.reduces and inputs.sizes[unit].reduce_input > 0)
    return launches


def _forward_ns(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int:
    calls = [costs.forward_ns(call.kind) for call in inputs.partition.model.calls]
    left_ns = [*accumulate(reversed(calls), initial=0)][::-1]
    order = [
        (unit, first)
        for unit, first in units_in_order(inputs)
        if knobs.shard(unit) > 1 and not knobs.starts_gathered(unit)
    ]
    copies = [
        _copy_out_ns(inputs.sizes[unit].gathered, costs, is_aliased=knobs.is_aliased(unit)) for unit, _ in order
    ]
    copies_ns = sum(copies)
    longest, gathered_ns, fetched_ns = left_ns[0] + copies_ns, 0, 0
    for copy_ns, (unit, first) in zip(copies, order, strict=True):
        if knobs.is_on_host(unit):
            fetched_ns += costs.host_to_device_ns(inputs.sizes[unit].stored)
            gathered_ns = max(gathered_ns, fetched_ns)
        gathered_ns += costs.collectives(knobs.meshes[unit]).all_gather_ns(inputs.sizes[unit].gathered)
        longest = max(longest, gathered_ns + copies_ns + left_ns[first])
        copies_ns -= copy_ns
    return longest


def _copy_out_ns(size: int, costs: CostModel, *, is_aliased: bool) -> int:
    return 0 if is_aliased else costs.copy_ns(size, size)


class _Tail(NamedTuple):
    """Backward of calls from `first` on and what follows it, without what their recomputation and gathers add."""

    first: int
    compute_ns: int


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of a backward."""

    link_ns: int
    """Reduce-scatters, with all-reduces where they share the link."""
    all_reduces_ns: int
    first_ns: int
    """Until the first reduce-scatter can begin."""
    num_begun: int
    """Passes that begin before that is issued."""
    last: _Tail
    """The longest that all recomputation and copies come before."""
    longest: _Tail


def _backward_sums(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> _Sums:
    sizes, kinds = inputs.sizes, inputs.partition.model.kinds
    apart = knobs.separate_reduce_scatter_group and costs.concurrent_collectives
    shares_link = costs.all_reduce_shares_link and not apart
    calls = [
        costs.backward_ns(call.kind) if kinds[call.kind].output_requires_grad else 0
        for call in inputs.partition.model.calls
    ]
    done_ns = [*accumulate(reversed(calls), initial=0)][::-1]
    """From the backward of each call, that of it included, to the end of its own."""
    order = units_in_order(inputs)
    copies_ns = {unit: gradient_copies_ns(inputs, knobs, costs, unit) for unit, _ in order}
    waits_ns = host_waits_ns(inputs, knobs, costs)
    tails = [_Tail(0, done_ns[0] + sum(copies_ns.values()) + sum(waits_ns.values()))]
    early_ns = {unit: ns for unit, ns in waits_ns.items() if reduces_early(inputs, unit)}
    before_ns = sum(copies_ns.values()) + sum(early_ns.values())
    each: list[Reduction] = []
    for unit, first in order:
        begin = 0 if unit == ROOT else first
        before_ns -= early_ns.get(unit, 0)
        reduced_ns = done_ns[begin] + before_ns
        before_ns -= copies_ns[unit]
        if not (knobs.reduces and sizes[unit].reduce_input):
            continue
        each.append(reduction(inputs, knobs, costs, unit))
        tails.append(_Tail(begin, reduced_ns + reductions_ns(each, shares_link=shares_link)))
    alls_ns = sum(one.all_reduce_ns for one in each)
    spending = _first_spending(inputs, knobs)
    reduced = _first_reduced(inputs, knobs)
    return _Sums(
        link_ns=sum(one.scatter_ns for one in each) + (alls_ns if shares_link else 0),
        all_reduces_ns=sum(one.after_all_reduce_ns for one in each) + alls_ns,
        first_ns=0 if reduced is None else done_ns[reduced],
        num_begun=sum(run.last >= (reduced or 0) for run in inputs.partition.passes),
        last=max((tail for tail in tails if tail.first <= spending), key=lambda tail: tail.compute_ns),
        longest=max(tails, key=lambda tail: tail.compute_ns),
    )


def _first_reduced(inputs: StepInputs, knobs: Knobs) -> int | None:
    """The call whose backward the first of all reductions follows, 0 for the end; None where some need no link."""
    if not knobs.reduces or any(knobs.shard(unit) == 1 for unit, _ in units_in_order(inputs)):
        return None
    firsts = {run.unit: run for run in reversed(inputs.partition.passes)}
    reducing = (run for unit, run in firsts.items() if inputs.sizes[unit].reduce_input)
    return max((run.first for run in reducing if reduces_in_backward(inputs, run)), default=0)


def _first_spending(inputs: StepInputs, knobs: Knobs) -> int:
    """No call before this one recomputes, and no unit gathers again for such a call alone."""
    parts = inputs.partition
    with_backward = parts.with_backward
    ends = {run.unit: run.last for run in parts.passes if parts.units[run.unit].parameters}
    recomputing = (
        call
        for call in range(len(parts.model.calls))
        if any(option not in (KEEP, TO_HOST) for option in options_of(knobs, call))
    )
    return min([*recomputing, *(last for unit, last in ends.items() if unit in with_backward)], default=0)


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for what calls keep and units leave gathered."""

    left_bytes: int
    moments: Sequence[Moment]

    def holds(self, kept: int, gathered: int) -> bool:
        """Whether every moment has room for this."""
        return all(moment.needed(kept, gathered) <= self.left_bytes for moment in self.moments)

    def holds_least(self, kept: int) -> bool:
        """Whether every moment has room for calls that keep the least, and units that leave nothing gathered."""
        return all(moment.least_needed(kept) <= self.left_bytes for moment in self.moments)

    @property
    def most_bytes(self) -> int:
        """No more can be kept and left gathered together."""
        return min(self.left_bytes - moment.more_bytes + moment.gone_bytes for moment in self.moments)


def _least_backward_ns(
    compute_ns: int, link_ns: int, calls: Sequence[Alike], units: Sequence[Alike], room: _Room
) -> int | None:
    """The longest of two relaxations; None where one finds no room.

    Calls spend computation and units the link, each on its own, and both keep what each moment has room for. Or
    both spend a weighted mean of computation and link, which is no longer than the longer of the two.
    """
    apart_ns = _apart_ns(compute_ns, link_ns, Mixture.of(calls, WEIGHTS), Mixture.of(units, 0), room)
    if apart_ns is None:
        return None
    longest = apart_ns
    for weight in range(1, WEIGHTS + 1):
        spent = Mixture.of([*calls, *units], weight).least_spent(room.most_bytes)
        if spent is None:
            return None
        longest = max(longest, (weight * compute_ns + (WEIGHTS - weight) * link_ns + spent) // WEIGHTS)
    return longest


def _apart_ns(compute_ns: int, link_ns: int, calls: Mixture, units: Mixture, room: _Room) -> int | None:
    """By bisection: longer backwards leave room to keep less."""

    def fits(backward_ns: int) -> bool:
        kept = calls.least_bytes((backward_ns - compute_ns) * WEIGHTS)
        gathered = units.least_bytes((backward_ns - link_ns) * WEIGHTS)
        return kept is not None and gathered is not None and room.holds(kept, gathered)

    low = max(compute_ns + calls.spent // WEIGHTS, link_ns + units.spent // WEIGHTS)
    high = max(compute_ns + calls.most_spent // WEIGHTS, link_ns + units.most_spent // WEIGHTS)
    if not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _kept_by_calls(inputs: StepInputs, knobs: Knobs, costs: CostModel, first: int = 0) -> Iterator[Alike]:
    """Calls before the first recompute for nothing."""
    counted: Counter[tuple[str, tuple[Activation, ...], bool]] = Counter()
    for call, entry in enumerate(inputs.partition.model.calls):
        counted[entry.kind, options_of(knobs, call), call < first] += 1
    for (name, options, is_free), num in counted.items():
        kind = inputs.partition.model.kinds[name]
        yield (
            [
                Option(
                    kept_bytes(inputs, kind, option),
                    costs.recompute_ns(name, option.saved_ops)
                    if option not in (KEEP, TO_HOST) and kind.output_requires_grad and not is_free
                    else 0,
                )
                for option in options
            ],
            num,
        )


def _kept_by_units(inputs: StepInputs, knobs: Knobs, costs: CostModel, first: int) -> Iterator[Alike]:
    """Of units with a backward, which gathers again, and copies out, what forward did not leave.

    Units whose passes end before the first call copy out for nothing.
    """
    parts = inputs.partition
    ends = {run.unit: run.last for run in parts.passes}
    counted: Counter[tuple[int, MeshCosts, tuple[Resharding, ...], int]] = Counter()
    for unit in parts.with_backward - {ROOT}:
        if not parts.units[unit].parameters:
            continue
        options = tuple(value for value, _ in knobs.reshard[unit])
        collectives = costs.collectives(knobs.meshes[unit])
        size = inputs.sizes[unit].gathered
        copy_ns = 0 if ends[unit] < first else _copy_out_ns(size, costs, is_aliased=knobs.is_aliased(unit))
        counted[size, collectives, options, copy_ns] += 1
    for (size, collectives, options, copy_ns), num in counted.items():
        yield [_resharded(size, option, collectives, costs, copy_ns) for option in options], num


def _resharded(size: int, option: Resharding, collectives: MeshCosts, costs: CostModel, copy_ns: int) -> Option:
    shard = collectives.mesh.shard
    kept = gathered_bytes(size, option, shard, costs)
    if option is False or shard == 1:
        return Option(kept, 0)
    gather_ns = collectives.all_gather_ns(size, None if option is True else option)
    return Option(kept, copy_ns, gather_ns)
