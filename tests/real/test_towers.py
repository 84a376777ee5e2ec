"""Modules that some ranks skip: the plan that knows trains, the one that does not leaves ranks waiting."""

import json
from pathlib import Path

import pytest

from planner.plan import make_plan
from planner.schema import Decisions, FixedChoice, PlanRequest, Precision, Workload
from runtime_client.describe import describe
from runtime_client.features import CLIENT_FEATURES
from tests.planner.factories import tiny_cluster
from tests.real.launch import ROOT, RanksFailed, run_ranks
from tests.real.towers import BATCH, SEQUENCE, example

pytestmark = [pytest.mark.real, pytest.mark.slow]


def planned(num_ranks: int, *conditional: str) -> Decisions:
    request = PlanRequest(
        model=describe(example, name="towers", micro_batch=BATCH, sequence=SEQUENCE, param_dtype=None),
        cluster=tiny_cluster(num_ranks),
        workload=Workload(
            micro_batch=BATCH,
            sequence=SEQUENCE,
            global_batch=BATCH * num_ranks,
            precision=Precision(param_dtype=None, reduce_dtype=None),
            conditional=conditional,
        ),
        fixed=(
            FixedChoice(knob="mesh.shard", value=num_ranks),
            FixedChoice(knob="blocks_per_unit", value=1),
            FixedChoice(knob="split_blocks", value=False),
        ),
        client_features=CLIENT_FEATURES,
    )
    made = make_plan(request).body.decisions
    assert made is not None
    return made


def modules_of(made: Decisions) -> set[str]:
    return {path for unit in made.units for path in unit.modules}


def test_a_rank_without_images_trains_by_a_plan_that_knows(tmp_path: Path) -> None:
    made = planned(2, "tower*")
    assert {"layers.0", "layers.1"} < modules_of(made)
    assert not any(path.startswith("tower") for path in modules_of(made))
    assert made.runtime.reduce_scatter_unused_params
    for rank in train(made, tmp_path):
        assert json.loads(rank.stdout)["difference"] < 1e-6


def test_a_plan_that_does_not_know_leaves_ranks_waiting(tmp_path: Path) -> None:
    made = planned(2)
    assert {"tower.0", "layers.0"} < modules_of(made)
    with pytest.raises(RanksFailed):
        train(made, tmp_path)


def train(made: Decisions, tmp_path: Path):
    (tmp_path / "decisions.json").write_text(made.model_dump_json())
    script = ROOT / "tests/real/towers.py"
    return run_ranks(script, 2, (str(tmp_path / "decisions.json"),), timeout_s=120, log_dir=tmp_path / "logs")
