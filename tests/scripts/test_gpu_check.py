import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.plan import make_plan
from planner.schema import (
    ClusterDescription,
    ModelDescription,
    NodeGroup,
    Plan,
    PlanRequest,
    Precision,
    Workload,
)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


def run(*arguments: str | Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def planned(model: ModelDescription) -> Plan:
    cluster = ClusterDescription(
        name="one device",
        node_groups=(NodeGroup(num_nodes=1, devices_per_node=1, device="H100-80G", intra_node="nvlink4"),),
    )
    workload = Workload(micro_batch=4, sequence=256, global_batch=4, precision=Precision())
    return make_plan(PlanRequest(model=model, cluster=cluster, workload=workload))


def test_it_measures_the_default_and_the_checkpointed_default(tmp_path):
    output = tmp_path / "measurements.json"
    printed = run("--steps", "2", "--output", output)
    plain, checkpointed = json.loads(output.read_text())["measurements"]
    assert (plain["name"], checkpointed["name"]) == ("default", "checkpointed")
    assert plain["loss"] == pytest.approx(checkpointed["loss"], abs=1e-6)
    assert plain["dry_run_bytes"] > checkpointed["dry_run_bytes"]
    assert plain["step_ms"] > 0
    assert plain["allocated_bytes"] is None
    assert printed.count("\n") == 4


def test_it_measures_a_plan_of_the_model_that_it_describes(tmp_path):
    model = tmp_path / "model.json"
    run("--write-model", model)
    plan, output = tmp_path / "plan.json", tmp_path / "measurements.json"
    plan.write_text(planned(ModelDescription.from_json(model.read_text())).to_json())
    printed = run("--steps", "1", "--plan", plan, "--output", output)
    measured = json.loads(output.read_text())["measurements"][2]
    assert measured["name"] == "plan"
    assert measured["predicted_allocated_bytes"] == pytest.approx(measured["dry_run_bytes"], rel=0.01)
    assert "| plan |" in printed
