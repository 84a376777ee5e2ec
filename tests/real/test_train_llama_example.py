"""The example trains with a plan file, and a rank that fails makes the launch fail with what it said."""

import runpy
import time
from pathlib import Path

import pytest

from planner.schema import Plan
from runtime_client.fingerprint import fingerprint
from tests.real.launch import ROOT, RanksFailed, run_ranks
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
    assert [line[:3] for line in lines] == [["step", str(step), "loss"] for step in range(5)]
    assert float(lines[-1][3]) < float(lines[0][3])
    assert second.stdout == ""


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
