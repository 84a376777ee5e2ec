"""Buffers and files have the sizes that plans predict."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import nn

from planner.program.inputs import LocalShards
from planner.schema import Parameter, StateTier
from planner.simulate.offloaded_state import NUM_BUFFERS, StateMemory
from runtime_client.offload import nvme_store
from runtime_client.offload import optimizer as host_side
from runtime_client.offload.nvme_store import NvmeStore
from runtime_client.offload.staging import size_of
from runtime_client.offload.store import HostStore
from runtime_client.offload.unit_step import UnitStep
from tests.runtime_client.offload.training import build, offloaded, units


def steps(model: nn.Sequential) -> list[UnitStep]:
    groups = offloaded(model).param_groups
    place = {parameter: number for number, group in enumerate(groups) for parameter in group["params"]}
    return [
        UnitStep.of(name, [(parameter, place[parameter]) for parameter in members], host_side.AdamW, groups)
        for name, members in units(model, has_all=True).items()
    ]


def shards(model: nn.Sequential) -> list[LocalShards]:
    return [
        [(str(n), Parameter(name=str(n), shape=tuple(p.shape)), p.numel()) for n, p in enumerate(members)]
        for members in units(model, has_all=True).values()
    ]


def predicted(model: nn.Sequential, tier: StateTier) -> StateMemory:
    return StateMemory.of(shards(model), tier, lambda _: 0)


@pytest.mark.parametrize("tier", [StateTier.HOST, StateTier.NVME])
def test_staging(tier: StateTier) -> None:
    model = build()
    assert host_side.NUM_STAGING_BUFFERS == nvme_store.NUM_BUFFERS == NUM_BUFFERS
    staged = max(step.staging_bytes for step in steps(model))
    assert predicted(model, tier).staging == (staged,) * NUM_BUFFERS


def test_state_in_host_memory() -> None:
    model = build()
    made: Sequence[UnitStep] = steps(model)
    store = HostStore(made)
    assert predicted(model, StateTier.HOST).host_bytes == sum(store.load(n).nbytes for n in range(len(made)))


def test_state_on_a_drive(tmp_path: Path) -> None:
    model = build()
    made = steps(model)
    store = NvmeStore(made, tmp_path / "rank-00000")
    memory = predicted(model, StateTier.NVME)
    assert memory.nvme_bytes == (tmp_path / "rank-00000" / "state.bin").stat().st_size
    assert memory.host_bytes == NUM_BUFFERS * max(size_of(step.state_like) for step in made)
    store.close()
