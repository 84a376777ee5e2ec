"""Names of checkpoints, on an unsharded model; tests/real/ragged shards it."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from runtime_client.ragged.checkpoint import CheckpointExists, latest_checkpoint, load_checkpoint, save_checkpoint


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, optimizer = trained(0)
    save_checkpoint(tmp_path / "one", model, [optimizer])
    other, its_optimizer = trained(1)
    load_checkpoint(tmp_path / "one", other, [its_optimizer])
    assert torch.equal(other.weight, model.weight)
    moment, expected = its_optimizer.state[other.weight], optimizer.state[model.weight]
    assert torch.equal(moment["exp_avg"], expected["exp_avg"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_a_name_is_used_once(tmp_path: Path) -> None:
    model, _ = trained(0)
    save_checkpoint(tmp_path / "one", model)
    with pytest.raises(CheckpointExists, match="one exists already"):
        save_checkpoint(tmp_path / "one", model)


def test_the_latest_is_the_one_that_was_finished_last(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    model, _ = trained(0)
    for age, name in enumerate(("step 9", "step 10", "step 11.part")):
        save_checkpoint(tmp_path / name, model)
        os.utime(tmp_path / name / ".metadata", (age, age))
    (tmp_path / "step 12").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "step 10"


def test_what_an_earlier_crash_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "one.part").mkdir()
    (tmp_path / "one.part" / "half").write_bytes(b"half")
    save_checkpoint(tmp_path / "one", trained(0)[0])
    assert not (tmp_path / "one.part").exists()
    assert not (tmp_path / "one" / "half").exists()
