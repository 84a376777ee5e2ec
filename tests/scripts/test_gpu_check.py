"""The script runs end to end on a CPU, in an environment that has torch and pydantic alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.plan import make_plan
from planner.profiles.imports import read_measurements
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
NOT_NEEDED = ("ortools", "fastapi", "sqlalchemy", "typer", "httpx2", "yaml", "transformers")
BLOCK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_NEEDED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def run(folder: Path, *arguments: str | Path) -> str:
    (folder / "sitecustomize.py").write_text(BLOCK)
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def planned(model: ModelDescription) -> Plan:
    cluster = ClusterDescription(
        name="one device",
        node_groups=(NodeGroup(num_nodes=1, devices_per_node=1, device="H100-80G", intra_node="nvlink4"),),
    )
    workload = Workload(micro_batch=2, sequence=256, global_batch=2, precision=Precision())
    return make_plan(PlanRequest(model=model, cluster=cluster, workload=workload))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Document and table of one run over everything, a plan of the Llama among it."""
    folder = tmp_path_factory.mktemp("check")
    model, plan, output = folder / "model.json", folder / "plan.json", folder / "check.json"
    run(folder, "--write-model", model)
    plan.write_text(planned(ModelDescription.from_json(model.read_text())).to_json())
    printed = run(folder, "--steps", "1", "--seconds", "0.1", "--plan", plan, "--output", output)
    return json.loads(output.read_text()), printed


def test_it_measures_every_configuration_and_the_plan(found: tuple[dict[str, Any], str]) -> None:
    document, printed = found
    rows = document["measurements"]
    assert [row["failure"] for row in rows] == [""] * len(rows)
    llama = [row for row in rows if row["model"] == "llama"]
    assert {"default", "all checkpointed", "units on the host", "every second offloaded", "ragged", "plan"} < {
        row["name"] for row in llama
    }
    for model in ("llama", "llama, loss in chunks", "moe"):
        assert f"| {model} | default |" in printed
    assert len({round(row["loss"], 4) for row in llama if row["name"] != "plan"}) == 1
    assert all(row["step_ms"] > 0 and row["predicted_step_ms"] > 0 for row in rows)
    assert all(row["allocated_bytes"] is None for row in rows), "a CPU counts no bytes"


def test_checkpointing_and_offload_are_predicted_to_need_less(found: tuple[dict[str, Any], str]) -> None:
    peaks = {
        row["name"]: row["predicted_allocated_bytes"] for row in found[0]["measurements"] if row["model"] == "llama"
    }
    assert peaks["all checkpointed"] < peaks["every second checkpointed"] < peaks["default"]
    assert peaks["units on the host"] < peaks["default"]


def test_its_profile_is_imported_and_has_both_kinds_of_block(found: tuple[dict[str, Any], str]) -> None:
    imported = read_measurements(
        json.dumps(found[0]), is_table=False, model=None, size=(1, None), name=None, source="check.json"
    )
    assert imported.provenance.torch_version
    blocks = {call.block for call in imported.calls if call.kind == "block" and call.forward_ns}
    assert len(blocks) == 2, "of the Llama and of the mixture of experts"
    keys = [(call.block, call.micro_batch, call.sequence) for call in imported.calls]
    assert len(set(keys)) == len(keys)
