"""The example trains with a plan file or with a service; a failing rank fails the launch with what it said."""

import runpy
import time
from pathlib import Path

import pytest

from planner.schema import ClusterDescription, Plan, PlanRequest, Workload
from runtime_client.describe import describe
from runtime_client.fingerprint import fingerprint
from tests.real.launch import ROOT, RanksFailed, run_ranks
from tests.real.service import running_service
from tests.runtime_client.plans import body, checkpointed, decisions, unit

pytestmark = [pytest.mark.real, pytest.mark.slow]

EXAMPLE = ROOT / "examples/train_llama.py"


def write_plan(folder: Path, **fields: object) -> str:
    model = runpy.run_path(str(EXAMPLE))["build_model"]()
    units = (unit("model.layers.0", forward_prefetch=("model.layers.1",)), unit("model.layers.1"), unit(""))
    made = decisions(
        units,
        shard=2,
        activations=checkpointed("model.layers.1"),
        micro_batch=2,
        num_micro_batches=2,
        param_dtype="bfloat16",
        reduce_dtype="float32",
    )
    path = folder / "plan.json"
    path.write_text(Plan.of(body(made, **{"fingerprint": fingerprint(model), **fields})).to_json())
    return str(path)


def test_example_trains(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    first, second = run_ranks(EXAMPLE, 2, [plan, "--cpu"], log_dir=tmp_path / "logs")
    lines = [line.split() for line in first.stdout.splitlines()]
    assert " ".join(lines.pop(0)[:3]) == "step against plan:"
    assert [line[:3] for line in lines] == [["step", str(step), "loss"] for step in range(5)]
    assert float(lines[-1][3]) < float(lines[0][3])
    assert second.stdout == ""


def test_example_asks_a_service(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    cluster = ClusterDescription.from_json((ROOT / "examples/clusters/gloo-2.json").read_text())
    request = PlanRequest(
        model=describe(example["build"], name="example", micro_batch=2, sequence=example["SEQUENCE"]),
        cluster=cluster,
        workload=Workload(micro_batch=2, sequence=example["SEQUENCE"], global_batch=8),
    )
    (tmp_path / "request.json").write_text(request.to_json())
    with running_service(tmp_path / "plans.db") as url:
        first, _ = run_ranks(
            EXAMPLE,
            2,
            ["--url", url, "--request", str(tmp_path / "request.json"), "--cpu"],
            env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
            log_dir=tmp_path / "logs",
        )
    checked, *steps = first.stdout.splitlines()
    assert "peak not counted on a CPU" in checked
    losses = [float(line.split()[3]) for line in steps]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_refusal_reaches_the_person(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, world_size=8)
    with pytest.raises(RanksFailed, match="contradicts itself"):
        run_ranks(EXAMPLE, 2, [plan, "--cpu"], log_dir=tmp_path / "logs")


def test_ranks_that_hang_are_killed(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(RanksFailed, match="did not end within 8 s and was killed"):
        run_ranks(script, 2, timeout_s=8, log_dir=tmp_path / "logs")
    while any(str(script) in command_line(entry) for entry in Path("/proc").glob("[0-9]*")):
        time.sleep(0.02)


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
