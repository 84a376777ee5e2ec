"""Rank 0 gets the plan, the others receive it; where it cannot, every rank ends with one message, in time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.plan import make_plan
from tests.planner.factories import tiny_cluster, tiny_model, tiny_request
from tests.real.launch import ROOT, free_port, run_ranks

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).with_name("share.py")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("plans")
    files = []
    for number, blocks in enumerate((2, 3)):
        files.append(folder / f"{number}.json")
        files[-1].write_text(make_plan(tiny_request(tiny_model(blocks), tiny_cluster(3))).to_json())
    return files


def share(case: str, plans: list[Path], tmp_path: Path) -> list[dict[str, Any]]:
    words = [case, str(tmp_path / "cache"), *map(str, plans)]
    outputs = run_ranks(SCRIPT, 3, words, log_dir=tmp_path / "logs")
    return [json.loads(output.stdout.splitlines()[-1]) for output in outputs]


def test_every_rank_gets_the_plan_of_rank_0(plans, tmp_path):
    answers = share("hands_on", plans, tmp_path)
    expected = json.loads(plans[0].read_text())["envelope"]["plan_id"]
    assert [answer.get("plan") for answer in answers] == [expected] * 3


def test_every_rank_says_why_there_is_none(plans, tmp_path):
    first, *others = share("away", plans, tmp_path)
    assert first["error"] == "no_plan_available"
    for other in others:
        assert other["error"] == "plan_not_shared"
        assert "rank 0 has no plan: NoPlanAvailable" in other["message"]


def test_ranks_do_not_wait_longer_than_they_said(plans, tmp_path):
    first, *others = share("slow", plans, tmp_path)
    assert "plan" in first
    for other in others:
        assert other["error"] == "plan_not_shared"
        assert "rank 0 gave no plan within 4 s" in other["message"]


def test_ranks_end_when_rank_0_is_killed(plans, tmp_path):
    """Without a launcher that would end them."""
    words = [sys.executable, str(SCRIPT), "dies", str(tmp_path), *map(str, plans)]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(words, env={**os.environ, **own, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        killed, left = (rank.communicate(timeout=100)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert (ranks[0].returncode, killed) == (-signal.SIGKILL, "")
    assert json.loads(left)["error"] == "plan_not_shared"


def test_different_plans_are_told_on_every_rank(plans, tmp_path):
    answers = share("differ", plans, tmp_path)
    assert [answer["error"] for answer in answers] == ["plan_differs_between_ranks"] * 3
    assert all("on ranks 0, 2" in answer["message"] and "on rank 1" in answer["message"] for answer in answers)
