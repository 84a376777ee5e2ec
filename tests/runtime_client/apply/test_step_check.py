"""The peak of a first step against the plan's. A CPU keeps no count of memory, so numbers are put in its place."""

import pytest
import torch

from planner.schema import MemoryPeak, Predictions
from runtime_client.apply import apply_decisions
from runtime_client.apply.meshes import build_mesh
from runtime_client.apply.step_check import checked_step
from tests.real.llama import seeded_llama
from tests.runtime_client.plans import decisions, unit

GIB = 2**30


@pytest.mark.parametrize(("found_gib", "is_told"), [(100, False), (101, False), (103, True), (50, False)])
def test_a_peak_above_the_plan_is_told(
    world: int, monkeypatch: pytest.MonkeyPatch, found_gib: int, is_told: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda: found_gib * GIB)
    model = seeded_llama(num_blocks=1, width=8, num_heads=2, hidden=11, vocabulary=13)
    made = decisions((unit(""),), shard=world)
    apply_decisions(model, made, build_mesh(made.mesh, "cpu"))
    peak = MemoryPeak.model_construct(first_micro_batch_bytes=100 * GIB, optimizer_step_bytes=60 * GIB)
    predictions = Predictions.model_construct(
        peak=peak, num_all_gathers=0, num_reduce_scatters=0, num_all_reduces=0
    )
    with checked_step(model, predictions, made) as report:
        pass
    told = [warning for warning in report.warnings if warning.startswith("the peak is")]
    assert bool(told) == is_told
    if told:
        assert f"{found_gib}.00 GiB instead of 100.00: " in told[0]
        assert "beside the model holds device memory" in told[0]
    assert report.line.startswith(f"step against plan: peak {found_gib}.00 of 100.00 GiB; ")
