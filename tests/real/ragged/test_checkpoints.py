"""Checkpoints of ragged models: saved on four ranks, loaded in every other way, and kept through crashes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.launch import ROOT, RanksFailed, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]

NUM_TENSORS = 23 * 4
"""Parameters, each with two moments and a step count."""


def run(num_ranks: int, logs: Path, *args: str) -> dict[str, Any]:
    script = ROOT / "tests/real/ragged/checkpoints.py"
    output = run_ranks(script, num_ranks, args, timeout_s=90, log_dir=logs)[0]
    return json.loads(output.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints")
    found = run(4, tmp_path_factory.mktemp("logs"), "save", str(directory))
    assert found == {"saved": ["expected.pt", "first"]}
    return directory


@pytest.mark.parametrize(("num_ranks", "how"), [(3, "even"), (2, "ragged"), (2, "stock"), (1, "plain")])
def test_loaded_another_way(saved: Path, tmp_path: Path, num_ranks: int, how: str) -> None:
    found = run(num_ranks, tmp_path / "logs", "load", str(saved), how)
    assert found["loaded"] == "first"
    assert found["tensors"] == NUM_TENSORS
    assert found["missing"] == found["different"] == []
    assert found["options"] == [0.01, [0.9, 0.999]]


def test_a_crash_while_saving_leaves_the_previous_checkpoint(saved: Path, tmp_path: Path) -> None:
    """kill -9 of one rank, then of all, in the middle of writing."""
    for victims in ("1", "0,1"):
        with pytest.raises(RanksFailed, match="exited with 1"):
            run(2, tmp_path / f"logs {victims}", "crash", str(saved), victims)
        assert not (saved / "second").exists()
        assert (saved / "second.part" / f"half written by {victims[-1]}").exists()
    found = run(2, tmp_path / "logs", "load", str(saved), "ragged")
    assert found["loaded"] == "first"
    assert found["tensors"] == NUM_TENSORS
    assert found["missing"] == found["different"] == []
