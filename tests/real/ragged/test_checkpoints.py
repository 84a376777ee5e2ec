"""Checkpoints of ragged models: saved on four ranks, loaded in every other way, and kept through crashes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.launch import ROOT, RanksFailed, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]

NUM_TENSORS = 23 * 4
"""Parameters, each with two moments and a step count."""


def run(num_ranks: int, logs: Path, *args: str) -> list[dict[str, Any]]:
    script = ROOT / "tests/real/ragged/checkpoints.py"
    output = run_ranks(script, num_ranks, args, timeout_s=90, log_dir=logs)[0]
    return [json.loads(line) for line in output.stdout.splitlines()]


def check_loaded(found: dict[str, Any], how: str) -> None:
    assert (found["loaded"], found["how"]) == ("first", how)
    assert found["tensors"] == NUM_TENSORS
    assert found["missing"] == found["different"] == []
    assert found["options"] == [0.01, [0.9, 0.999]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints")
    found = run(4, tmp_path_factory.mktemp("logs"), "save", str(directory))
    assert found == [{"saved": ["expected.pt", "first"]}]
    return directory


@pytest.mark.parametrize(("num_ranks", "ways"), [(3, ("even", "stock")), (1, ("plain",))])
def test_loaded_another_way(saved: Path, tmp_path: Path, num_ranks: int, ways: tuple[str, ...]) -> None:
    """Into evenly sharded and unsharded models; `stock` uses torch's own functions only."""
    found = run(num_ranks, tmp_path / "logs", "load", str(saved), *ways)
    for result, how in zip(found, ways, strict=True):
        check_loaded(result, how)


def test_a_crash_while_saving_leaves_the_previous_checkpoint(saved: Path, tmp_path: Path) -> None:
    """kill -9 of one rank, then of all, in the middle of writing; then loaded with another layout on two ranks."""
    for victims in ("1", "0,1"):
        with pytest.raises(RanksFailed, match="exited with 1"):
            run(2, tmp_path / f"logs {victims}", "crash", str(saved), victims)
        assert not (saved / "second").exists()
        assert (saved / "second.part" / f"half written by {victims[-1]}").exists()
    (found,) = run(2, tmp_path / "logs", "load", str(saved), "ragged")
    check_loaded(found, "ragged")
