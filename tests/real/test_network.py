"""Ranks behind a slow link: hooks that overlap train what FSDP2 trains, and the peak is the predicted one."""

from pathlib import Path

import pytest

from benchmarks.network.cell import run
from benchmarks.network.job import Job, Variant
from benchmarks.network.models import MODELS
from benchmarks.network.namespaces import why_not
from benchmarks.network.summary import PEAK_ERROR, peak_error, plan_of, tables
from runtime_client.describe import describe
from tests.real.launch import run_ranks

REASON = why_not()
pytestmark = pytest.mark.real


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_wire_carries_what_gloo_carries(num_ranks: int, tmp_path: Path) -> None:
    ranks = run_ranks(Path(__file__).with_name("wire.py"), num_ranks, log_dir=tmp_path / "logs")
    assert [rank.stdout.split() for rank in ranks] == [["equal"]] * num_ranks


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_planned_and_default_steps_behind_a_slow_link() -> None:
    spec = MODELS["small"]
    model = describe(
        spec.example, name="small", micro_batch=spec.micro_batch, sequence=spec.sequence, param_dtype=None
    )
    job = Job(
        model="small",
        megabits=1000,
        description=model.to_json(),
        variants=(Variant(num_micro_batches=2, is_tight=True),),
        rounds=1,
        profile_rounds=1,
        has_grid=False,
    )
    (line,) = run(job, 2, timeout_s=240)
    line["name"] = "small"
    names = [arm["name"] for arm in line["arms"]]
    assert names == ["default, all checkpointed", "plan", "stock"]
    assert plan_of(line)["predicted_reserved_bytes"] <= line["budget_bytes"]
    first = line["arms"][0]["losses"]
    assert len(set(first)) == len(first) >= 3, "each step trains"
    for arm in line["arms"]:
        assert arm["losses"][:3] == pytest.approx(first[:3], rel=1e-5)
        assert abs(peak_error(arm)) <= PEAK_ERROR, arm["name"]
        assert arm["predicted_ms"] > 0
    assert line["profile"]["collectives"]
    assert tables([line]).count("small") == 2
