"""Optimizer state that is not where its parameters are: bytes, and the step of five stages that the client runs.

Written from `runtime_client/offload/pipeline.py`: a stage takes one unit after the other, and begins with one when
it is through with the one before, its inputs are there and it has a buffer. Buffers come back when the last stage
that uses them is done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.check.costs import Shards, StepCosts
from planner.check.units import Unit
from planner.schema.decisions import Decisions
from planner.schema.model import StateTier
from planner.schema.request import PlanRequest
from planner.schema.workload import OptimizerName

_BUFFERS = 3
_LINE, _PAGE = 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayState:
    """Of all units whose state is on the host or on NVMe while their parameters are on the device."""

    host_bytes: int
    transient_bytes: int
    nvme_bytes: int
    step_ns: int


def away_state(units: Sequence[Shards], *, on_nvme: bool, costs: StepCosts) -> AwayState:
    """Of the shards of each unit, in the order in which they step."""
    if not units:
        return AwayState(host_bytes=0, transient_bytes=0, nvme_bytes=0, step_ns=0)
    staged = [sum(_up(size, _LINE) for size in _sizes(shards)) for shards in units]
    buffers = _BUFFERS * 2 * max(staged)
    in_memory = _BUFFERS * 2 * max(staged) if on_nvme else 2 * sum(staged)
    return AwayState(
        host_bytes=buffers + in_memory,
        transient_bytes=max(costs.optimizer_transient_bytes(shards) for shards in units),
        nvme_bytes=2 * sum(_up(2 * size, _PAGE) for size in staged) if on_nvme else 0,
        step_ns=_step_ns(units, on_nvme=on_nvme, costs=costs),
    )


def _step_ns(units: Sequence[Shards], *, on_nvme: bool, costs: StepCosts) -> int:
    clocks = dict.fromkeys(("fetch", "load", "update", "return", "store"), 0)
    staging, states = [0] * _BUFFERS, [0] * _BUFFERS
    for number, shards in enumerate(units):
        size, turn = sum(_sizes(shards)), number % _BUFFERS

        def run(stage: str, after_ns: int, duration_ns: int) -> int:
            clocks[stage] = max(clocks[stage], after_ns) + duration_ns
            return clocks[stage]

        arrived = run("fetch", staging[turn], costs.device_to_host_ns(2 * size))
        if on_nvme:
            arrived = max(arrived, run("load", states[turn], costs.nvme_read_ns(2 * size)))
        updated = run("update", arrived, costs.cpu_optimizer_ns(shards))
        staging[turn] = run("return", updated, costs.host_to_device_ns(size))
        if on_nvme:
            states[turn] = run("store", updated, costs.nvme_write_ns(2 * size))
    return max(clocks.values())


def state_problems(decisions: Decisions) -> Iterator[str]:
    """Shards are on the device or in host memory; the optimizer's state is with them, or away from the device."""
    away = [unit for unit in decisions.units if unit.parameter_tier is not unit.optimizer_tier]
    for unit in decisions.units:
        title = f"unit {unit.modules[0]!r}"
        if unit.parameter_tier is StateTier.NVME:
            yield f"{title}: parameter_tier nvme is not modelled"
        elif unit in away and unit.parameter_tier is StateTier.HOST:
            yield f"{title}: optimizer_tier {unit.optimizer_tier} with parameter_tier host is not modelled"
    if len({unit.optimizer_tier for unit in away if unit.parameter_tier is StateTier.DEVICE}) > 1:
        yield "optimizer_tier is host for some units with parameters on the device, nvme for others"


def optimizer_problems(request: PlanRequest, units: Sequence[Unit]) -> Iterator[str]:
    """What is away from its parameters is Adam's, in their type."""
    groups = request.workload.optimizer_groups
    for unit in units:
        if unit.plan.parameter_tier is unit.plan.optimizer_tier:
            continue
        for parameter in (one for one in unit.parameters if one.requires_grad):
            group = next((group for group in groups if group.holds(parameter.name)), None)
            if group is None:
                continue
            is_adam = group.optimizer in (OptimizerName.ADAM, OptimizerName.ADAMW)
            if not is_adam or group.state_dtype not in (None, parameter.storage):
                yield f"{unit.title}: the state of {parameter.name!r} is away from it, and not Adam's in its type"
                break


def _sizes(shards: Shards) -> list[int]:
    return [elements * parameter.dtype.itemsize_bytes for _, parameter, elements in shards]


def _up(size_bytes: int, step_bytes: int) -> int:
    return size_bytes + -size_bytes % step_bytes
