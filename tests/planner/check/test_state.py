"""Optimizer state away from its parameters, by hand; costs as in `test_offload.py`.

Copies to the host 60 ns, from it 50, the CPU's step of a unit 11, a read 70, a write 80; the device's own step 7. A
block is 32 elements in float32: shard of 2 ranks 64 B, Adam 128.
"""

import pytest

from planner.check import recompute
from planner.check.state import away_state
from planner.schema import Decisions, MemoryCategory, Parameter, PlanRequest, StateTier
from planner.simulate.offloaded_state import StateMemory, state_step_ns
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.test_offload import blocks_only
from tests.planner.factories import tiny_decisions

TIERS = (StateTier.HOST, StateTier.NVME)


def away(request: PlanRequest, tier: StateTier, *, on_device: int = 0) -> Decisions:
    """State of all units but the first `on_device` in a tier."""
    decisions = tiny_decisions(request)
    kept, moved = decisions.units[:on_device], decisions.units[on_device:]
    changed = (unit.model_copy(update={"optimizer_tier": tier}) for unit in moved)
    return decisions.model_copy(update={"units": (*kept, *changed)})


@pytest.mark.parametrize(
    ("tier", "num_blocks", "expected"),
    [
        # fetch 0-60, update 60-71, back 71-121
        (StateTier.HOST, 1, 121),
        # fetches end at 60, 120, 180, and the fourth at 240: its buffer came back at 121. Back 251-301
        (StateTier.HOST, 4, 301),
        # read 0-70, update 70-81, write 81-161
        (StateTier.NVME, 1, 161),
        # writes follow each other from 81 on; the fourth read waits for the first buffer, 161-231, and ends in time
        (StateTier.NVME, 4, 81 + 4 * 80),
    ],
)
def test_clocks(tier: StateTier, num_blocks: int, expected: int) -> None:
    request = blocks_only(num_blocks)
    found = recompute(request, away(request, tier), FlatCosts(nvme_budget_bytes=2**20))
    plain = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.optimizer_ns == expected
    assert found.micro_batch_ns == plain.micro_batch_ns


def test_memory_on_the_host() -> None:
    # Two blocks: Adam 128 each, three buffers for a shard and its gradient of 64 each, foreach's copy of one unit.
    request = blocks_only(2)
    found = recompute(request, away(request, StateTier.HOST), FlatCosts())
    assert found.host_bytes == 2 * 128 + 3 * 2 * 64 + 64
    assert found.nvme_bytes == 0
    assert MemoryCategory.OPTIMIZER not in found.by_category_bytes


def test_memory_on_a_drive() -> None:
    # Three buffers of 128 for state; each unit has two slots of a page in the file.
    request = blocks_only(2)
    found = recompute(request, away(request, StateTier.NVME), FlatCosts())
    assert found.host_bytes == 3 * 128 + 3 * 2 * 64 + 64
    assert found.nvme_bytes == 2 * 2 * 4096


def test_some_units_on_the_device() -> None:
    # One block of 128 there, whose optimizer steps while the others' do.
    request = blocks_only(3)
    found = recompute(request, away(request, StateTier.HOST, on_device=1), FlatCosts())
    assert found.optimizer_ns == 60 + 60 + 11 + 50
    assert found.host_bytes == 2 * 128 + 3 * 2 * 64 + 64
    slow = recompute(request, away(request, StateTier.HOST, on_device=1), FlatCosts(to_host=1, to_device=1))
    assert slow.optimizer_ns == max(7, 1 + 11 + 11 + 1)


@pytest.mark.parametrize("tier", TIERS)
def test_simulator_and_checker_agree_on_units_of_any_size(tier: StateTier) -> None:
    units = [[(f"{n}", Parameter(name="w", shape=(n, 3)), 3 * n)] for n in (1, 50, 7, 21, 300, 2)]

    class Sized(FlatCosts):
        def device_to_host_ns(self, size_bytes: int, /) -> int:
            return 3 + size_bytes // 7

        def nvme_write_ns(self, size_bytes: int, /) -> int:
            return size_bytes // 5

        def cpu_optimizer_ns(self, shards, /) -> int:
            return 2 * shards[0][2]

    costs = Sized()
    own = away_state(units, on_nvme=tier is StateTier.NVME, costs=costs)
    memory = StateMemory.of(units, tier, costs.optimizer_transient_bytes)
    assert own.step_ns == state_step_ns(units, tier, costs)
    assert own.host_bytes == memory.host_bytes + sum(memory.staging)
    assert (own.nvme_bytes, own.transient_bytes) == (memory.nvme_bytes, memory.transient_bytes)
