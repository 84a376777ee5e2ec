"""The check of the first step on real ranks: quiet where all is as planned, and a likely cause where it is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.plan import make_plan
from planner.schema import FixedChoice
from tests.real.launch import run_ranks
from tests.real.small_llama import describe_model, request_for

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("checks")
    request = request_for(describe_model(), 2, shard=2)
    last = FixedChoice(knob="gradient_sync", value="last_micro_batch")
    plan = make_plan(request.model_copy(update={"fixed": (*request.fixed, last)}))
    assert plan.body.outcome == "feasible"
    (folder / "plan.json").write_text(plan.to_json())
    script = Path(__file__).with_name("step_checks.py")
    outputs = run_ranks(script, 2, [str(folder / "plan.json")], log_dir=folder / "logs", timeout_s=300)
    return json.loads(outputs[1].stdout.splitlines()[-1])


def test_a_step_as_planned_is_one_line(reports):
    report = reports["planned"]
    assert report["warnings"] == []
    assert report["found"] == report["planned"] != []
    assert report["line"].startswith("step against plan: peak not counted on a CPU; ")
    changed, _, number = report["line"].split("; ")[-1].split()[:3]
    assert changed == number != "0"


def test_what_the_optimizer_leaves_out_is_named(reports):
    (warning,) = reports["partial"]["warnings"]
    assert "1 of " in warning
    assert "'model.norm.weight' or " in warning or "'lm_head.weight'" in warning
    assert "did not change: the optimizer may hold other parameters" in warning


def test_a_forward_that_the_plan_does_not_know_of_is_told(reports):
    stale, warning = reports["evaluated"]["warnings"]
    assert "were gathered when the optimizer stepped, and the next forward will use their old values" in stale
    assert "all-gathers instead of" in warning
    assert "the model ran 3 times, and a step of the plan has 2 micro-batches" in warning


def test_a_unit_that_is_prefetched_when_it_is_over_is_named(reports):
    assert any("in forward, which does not run later: it stays" in one for one in reports["behind"]["warnings"])


def test_missing_micro_batches_are_told(reports):
    assert any("0 reduce-scatters instead of" in warning for warning in reports["fewer"]["warnings"])
    cause = "the model ran 1 times, and a step of the plan has 2 micro-batches"
    assert any(cause in warning for warning in reports["fewer"]["warnings"])


def test_a_loop_that_does_not_say_which_micro_batch_comes_is_told(reports):
    assert any("begin_micro_batch has to be called" in warning for warning in reports["silent"]["warnings"])
