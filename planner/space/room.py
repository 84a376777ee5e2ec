"""Memory that a floor counts: what is alive, whatever is decided, at moments that can be the peak.

Throughout a micro-batch the pool of the computation holds what is always there, what calls keep and what units
leave gathered. Where some of the latter may be gone, the most that they can be is taken off. What is gathered in
place lies in the pool of the gathers instead, at the same moments and longer; with such units no peak of that pool
is added to them. The moments are

- the end of the forward;
- the worst points of the forward and of the backward of a call, where whole gradients wait for their reduction, and
  the input of a reduction for the next one: of each kind and such input the last call, since it finds most kept;
- where units stay gathered between micro-batches, the end of one and the beginning of the next;
- the reductions of units, the last of each size: the unit's gradients beside the input of its reduction;
- the optimizer step, with what it needs on top of its state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from planner.costs import CostModel
from planner.program.build.calls import liveness_of
from planner.program.sizes import UnitBytes
from planner.program.step import KEEP, TO_HOST, Activation, Knobs, Resharding, StepInputs
from planner.program.units import ROOT, Pass
from planner.schema import CallKind, HostRuns, Polynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive beside resident memory, and what may be gone of what calls and units keep."""

    more_bytes: int = 0
    gone_kept_bytes: int = 0
    """Most that calls keep which have none of it at this moment."""
    gone_least_bytes: int = 0
    """Least that these keep."""
    gone_gathered_bytes: int = 0
    """Most that units leave gathered which need not be gathered at this moment."""

    def needed(self, kept: int, gathered: int) -> int:
        """Where all calls keep so much together, and all units leave so much gathered."""
        return self.more_bytes + max(0, kept - self.gone_kept_bytes) + max(0, gathered - self.gone_gathered_bytes)

    @property
    def gone_bytes(self) -> int:
        """Most that may be gone of what calls keep and units leave gathered."""
        return self.gone_kept_bytes + self.gone_gathered_bytes

    def least_needed(self, least_kept: int) -> int:
        """Where every call keeps the least that it can."""
        return self.more_bytes + least_kept - self.gone_least_bytes


def resident_bytes(inputs: StepInputs, knobs: Knobs) -> int:
    """Alive in the pool of the computation throughout the micro-batch from the end of the forward."""
    sizes = inputs.sizes
    total = inputs.optimizer_bytes + inputs.partition.model.buffers_bytes + sizes[ROOT].gathered
    total += sum(size.stored for unit, size in enumerate(sizes) if not knobs.is_on_host(unit))
    total += inputs.partition.model.inputs_bytes.at(inputs.micro_batch, inputs.sequence)
    if knobs.finds_whole_gradients:
        total += sum(_whole_bytes(size) for size in sizes)
    return total


def _whole_bytes(size: UnitBytes) -> int:
    """Gradients of a unit that earlier micro-batches left."""
    return size.whole_gradients if size.accumulates_apart else size.gradients


def other_pools_bytes(inputs: StepInputs, places: Sequence[Knobs], costs: CostModel) -> int:
    """Peaks of the pools of gathers and reductions: buffers of neighbours, and all sharded gradients.

    A gather's buffer lives until that of the next one is copied out, which was cast and gathered meanwhile (but
    not where a CPU computes and gathers asynchronously). Where units are gathered in place, this pool is left out:
    the moments count what is in it.
    """
    shards = sum(
        size.sharded_gradients
        for unit, size in enumerate(inputs.sizes)
        if inputs.partition.units[unit].parameters and not places[0].is_on_host(unit)
    )
    reduces = any(knobs.reduces for knobs in places)
    return max(_gather_buffers_bytes(inputs, knobs, costs) for knobs in places) + reduces * shards


def _gather_buffers_bytes(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> int:
    peak = before = 0
    is_held = costs.host_runs is not HostRuns.KERNELS
    if any(knobs.aliased):
        return 0
    for unit, _ in units_in_order(inputs):
        size = inputs.sizes[unit]
        if knobs.starts_gathered(unit) or not size.gathered:
            continue
        if knobs.shard(unit) == 1:
            before = 0
            continue
        cast = 0 if knobs.is_on_host(unit) else size.cast
        peak = max(peak, before + cast + size.gathered)
        before = size.gathered * is_held
    return peak


def units_in_order(inputs: StepInputs) -> list[tuple[int, int]]:
    """Units in the order of their forward, each with the call that it begins at."""
    parts = inputs.partition
    found = {ROOT: 0}
    for run in parts.passes:
        found.setdefault(run.unit, run.first)
    return [(unit, first) for unit, first in found.items() if parts.units[unit].parameters]


def options_of(knobs: Knobs, call: int) -> tuple[Activation, ...]:
    """Policies that a call may have."""
    choice = knobs.activation.get(call)
    return (KEEP,) if choice is None else tuple(activation for activation, _ in choice)


def kept_bytes(inputs: StepInputs, kind: CallKind, activation: Activation) -> int:
    """What a call keeps on the device from its forward to its backward."""
    if activation == TO_HOST:
        return 0
    return liveness_of(kind, activation).kept_bytes(inputs.micro_batch, inputs.sequence)


def gathered_bytes(size: int, option: Resharding, shard: int, costs: CostModel) -> int:
    """What a unit leaves gathered after its forward, with the communicator that partial resharding takes."""
    if option is False:
        return size
    return 0 if option is True or shard == 1 else size // option + costs.partial_reshard_bytes(option)


def reduces_in_backward(inputs: StepInputs, run: Pass) -> bool:
    """Whether post-backward of a pass runs when that is done, rather than after all of the backward."""
    parts = inputs.partition
    first = parts.model.kinds[parts.model.calls[run.first].kind]
    return bool(parts.units[run.unit].parameters) and parts.has_backward(run) and first.input_requires_grad


def moments(inputs: StepInputs, knobs: Knobs, costs: CostModel) -> list[Moment]:
    """Moments of a micro-batch that can be its peak."""
    return list(_Walk(inputs, knobs, costs).moments())


def _after(gathered: Sequence[tuple[int, int]], call: int) -> int:
    """Bytes of units that begin after a call."""
    return sum(size for first, size in gathered if first > call)


class _Walk:
    def __init__(self, inputs: StepInputs, knobs: Knobs, costs: CostModel) -> None:
        self._inputs, self._knobs = inputs, knobs
        self._parts = parts = inputs.partition
        self._model = parts.model
        self._kept = cache(self._find_kept)
        kept = [self._kept(entry.kind, options_of(knobs, call)) for call, entry in enumerate(self._model.calls)]
        self._most = [*accumulate((most for most, _ in reversed(kept)), initial=0)][::-1]
        """Most that is kept by each call and all after it."""
        self._least = [*accumulate((least for _, least in reversed(kept)), initial=0)][::-1]
        self._first_pass = {run.unit: run for run in reversed(parts.passes)}
        last_pass = {run.unit: run for run in parts.passes}
        self._gathered = [
            (
                unit,
                last_pass[unit].first,
                max(
                    gathered_bytes(inputs.sizes[unit].gathered, option, knobs.shard(unit), costs)
                    for option, _ in knobs.reshard[unit]
                ),
            )
            for unit in parts.with_backward - {ROOT}
            if parts.units[unit].parameters
        ]
        """Units that run in backward, the call that their last pass begins at, and the most that they leave."""
        sizes = [(self._first_pass[unit].first, inputs.sizes[unit].gathered, unit) for unit, _, _ in self._gathered]
        self._begins = [(first, size) for first, size, unit in sizes if knobs.starts_gathered(unit)]
        """Of units that the micro-batch before left gathered, the call that they begin at, and their bytes."""
        self._ends = [(first, size) for first, size, unit in sizes if knobs.keeps_after_backward(unit)]
        """Of units that stay gathered for the next micro-batch."""
        self._made = [
            sum(sizes) if self._kind(call).output_requires_grad else 0
            for call, sizes in enumerate(inputs.gradients)
        ]
        """Bytes of gradients that the backward of each call makes."""
        self._reducing = [run for run in parts.passes if knobs.reduces and reduces_in_backward(inputs, run)]

    def moments(self) -> Iterator[Moment]:
        yield Moment()
        units = {unit for unit, _, _ in self._gathered}
        yield self._moment(max(_after(self._begins, -1), _after(self._ends, -1)), 0, units, None)
        calls: set[tuple[str, int]] = set()
        for call, retained in self._retained_bytes():
            if (self._model.calls[call].kind, retained) not in calls:
                calls.add((self._model.calls[call].kind, retained))
                yield self._in_call(call, retained)
        reduced: set[tuple[int, int]] = set()
        for run in sorted(self._reducing, key=lambda run: -run.first):
            size = self._inputs.sizes[run.unit]
            if (size.gradients, size.reduce_input) not in reduced and run is self._first_pass[run.unit]:
                reduced.add((size.gradients, size.reduce_input))
                yield self._in_reduction(run)
        if self._knobs.micro_batch.is_last:
            yield self._in_optimizer_step(units)

    def _in_call(self, call: int, retained: int) -> Moment:
        """In its forward, or in its backward."""
        run = self._pass_of(call)
        own = 0 if run is None else self._inputs.sizes[run.unit].gathered
        waiting = self._waiting_gradients_bytes(call) + retained + _after(self._ends, call)
        more = min(
            max(
                _after(self._begins, call) + self._forward_bytes(call, option),
                waiting + self._backward_bytes(call, option),
            )
            for option in options_of(self._knobs, call)
        )
        more -= self._reduced_bytes({run.unit for run in self._reducing if run.first > call})
        return self._moment(own + more, call, {unit for unit, first, _ in self._gathered if first > call}, run)

    def _in_reduction(self, run: Pass) -> Moment:
        more = self._waiting_gradients_bytes(run.first, run.unit) + self._inputs.sizes[run.unit].reduce_input
        more -= self._reduced_bytes(
            {other.unit for other in self._reducing if other.first >= run.first} - {run.unit}
        )
        return self._moment(more, run.first, {unit for unit, first, _ in self._gathered if first >= run.first}, run)

    def _in_optimizer_step(self, units: set[int]) -> Moment:
        """Nothing is gathered any more, the root neither, and all gradients are reduced."""
        sizes = self._inputs.sizes
        more = self._inputs.optimizer_transient_bytes - sizes[ROOT].gathered
        return self._moment(more - self._reduced_bytes(set(range(len(sizes)))), 0, units, None)

    def _moment(self, more: int, call: int, ungathered: set[int], run: Pass | None) -> Moment:
        """Calls from `call` on keep nothing; some units, and that of a pass, leave nothing gathered."""
        gone = ungathered if run is None else ungathered | {run.unit}
        return Moment(
            more_bytes=more,
            gone_kept_bytes=self._most[call],
            gone_least_bytes=self._least[call],
            gone_gathered_bytes=sum(most for unit, _, most in self._gathered if unit in gone),
        )

    def _kind(self, call: int) -> CallKind:
        return self._model.kinds[self._model.calls[call].kind]

    def _find_kept(self, name: str, options: tuple[Activation, ...]) -> tuple[int, int]:
        """The most and the least that a call of a kind keeps."""
        found = [kept_bytes(self._inputs, self._model.kinds[name], option) for option in options]
        return max(found), min(found)

    def _pass_of(self, call: int) -> Pass | None:
        """Pass that a call runs in with its unit gathered in forward and in backward; None in the root."""
        unit = self._parts.unit_of_call[call]
        runs = (run for run in self._parts.passes if run.unit == unit and run.first <= call <= run.last)
        return next((run for run in runs if unit != ROOT and self._parts.has_backward(run)), None)

    def _forward_bytes(self, call: int, option: Activation) -> int:
        points = liveness_of(self._kind(call), option).forward
        return max((self._at(point.live_bytes) for point in points), default=0)

    def _backward_bytes(self, call: int, option: Activation) -> int:
        if not self._kind(call).output_requires_grad:
            return 0
        made = self._inputs.gradients[call] if self._makes_anew else ()
        return max(
            (
                self._at(point.live_bytes) + sum(made[: point.num_gradients])
                for point in liveness_of(self._kind(call), option).backward
            ),
            default=0,
        )

    def _at(self, size: Polynomial) -> int:
        return size.at(self._inputs.micro_batch, self._inputs.sequence)

    @property
    def _makes_anew(self) -> bool:
        """Gradients are buffers of their own until they are reduced, not added to others."""
        return self._knobs.reduces and not self._knobs.finds_whole_gradients

    def _waiting_gradients_bytes(self, call: int, reducing: int | None = None) -> int:
        """Made by the backward of later calls, for units that reduce when that of `call` is done, or later.

        With a unit that reduces now: those of `call` too, and of units that reduce after that one.
        """
        if not self._makes_anew:
            return 0
        first = {unit: run.first for unit, run in self._first_pass.items()}
        begin = call + 1 if reducing is None else call
        return sum(
            made
            for later, made in enumerate(self._made[begin:], start=begin)
            for unit in (self._parts.unit_of_call[later],)
            if unit in (ROOT, reducing) or first.get(unit, later) < begin
        )

    def _reduced_bytes(self, units: set[int]) -> int:
        """Whole gradients of earlier micro-batches that are gone once these units are reduced."""
        found = self._knobs.finds_whole_gradients
        return sum(_whole_bytes(self._inputs.sizes[unit]) for unit in units) if found else 0

    def _retained_bytes(self) -> Iterator[tuple[int, int]]:
        """Calls from the last on, with the input of the last reduction before their backward.

        The next reduction takes it back, or the next unit that is done with its backward.
        """
        inputs = {
            run.first: self._inputs.sizes[run.unit].reduce_input if run is self._first_pass[run.unit] else 0
            for run in reversed(self._reducing)
        }
        retained = 0
        for call in reversed(range(len(self._model.calls))):
            yield call, retained
            retained = inputs.get(call, retained)
