"""The first step has no optimizer state until its end, so that the second needs more."""

import json
import subprocess
import sys
from math import ceil

import pytest

from planner.simulate import replay
from planner.simulate.peaks import PhasePeaks
from tests.planner.simulate.programs import allocate, program, touch

GIB = 2**30
SHARD = 4 * 6_000_000_000 // 2
"""6e9 float32 parameters on two ranks."""
BUDGET = 52 * GIB
RECORD = """
import json, sys
from planner.schema import OptimizerGroup
from runtime_client.dryrun.memory import record_memory
from tests.runtime_client.dryrun.conftest import make_decisions
from tests.runtime_client.dryrun.llama import small
peaks = [
    record_memory(
        small,
        make_decisions(mesh=(1, 8)),
        sequence=16,
        optimizer_groups=(OptimizerGroup(implementation="foreach"),),
        num_steps=num_steps,
    ).micro_batch.total_bytes
    for num_steps in (1, 2, 3)
]
shapes = [list(parameter.shape) for parameter in small().model.parameters()]
print(json.dumps({"peaks": peaks, "shapes": shapes}))
"""


def six_billion(transient: int) -> PhasePeaks:
    """Adam over 6e9 parameters; backward needs 5 GiB beside state and gradients."""
    run = replay(
        program(
            allocate("parameters", SHARD, "parameters"),
            allocate("optimizer", 2 * SHARD, "optimizer"),
            allocate("gradients", SHARD, "gradients"),
            touch("backward", transients=5 * GIB),
            touch("optimizer step", optimizer=transient),
        ),
        points=True,
    )
    assert (run.peaks.micro_batch_bytes, run.peaks.optimizer_bytes) == tuple(p.total_bytes for p in run.points[-2:])
    return PhasePeaks(
        micro_batch=run.points[-2], optimizer=run.points[-1], optimizer_state_bytes=2 * SHARD, host_bytes=0
    )


def gib(size: int) -> float:
    return round(size / GIB, 3)


def test_a_profile_of_the_first_forward_and_backward_misses_the_state():
    peaks = six_billion(transient=SHARD)
    assert gib(peaks.optimizer_state_bytes) == 22.352
    assert gib(peaks.micro_batch.total_bytes) == 49.703
    assert gib(peaks.first_micro_batch_bytes) == 27.352


@pytest.mark.parametrize(("transient", "later", "fits"), [(SHARD, 55.879, False), (0, 49.703, True)])
def test_foreach_exceeds_the_budget_in_every_step_and_fused_in_none(transient, later, fits):
    peaks = six_billion(transient=transient)
    assert gib(peaks.step_bytes) == later
    assert (peaks.step_bytes <= BUDGET) is fits


def test_the_second_step_exceeds_the_first():
    peaks = six_billion(transient=0)
    # The first optimizer step has the state, 44.703 GiB; backward of the second has that and its own 5 GiB.
    assert gib(peaks.first_step_bytes) == 44.703
    assert peaks.first_step_bytes < peaks.step_bytes


def test_fsdp2_runs_its_first_step_without_state():
    run = subprocess.run([sys.executable, "-c", RECORD], capture_output=True, text=True, check=True, timeout=300)
    record = json.loads(run.stdout.splitlines()[-1])
    first, second, third = record["peaks"]
    state = sum(2 * 4 * ceil(rows / 8) * (rest[0] if rest else 1) for rows, *rest in record["shapes"])
    assert second == third
    assert second - first == state
