"""Trainers of others, sharded by a plan: on two gloo ranks they lose what the same trainer loses without a plan."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
from torch import nn

from planner.schema import Plan
from planner.schema.decisions import GradientSync
from runtime_client.fingerprint import fingerprint
from tests.real.launch import ROOT, run_ranks
from tests.runtime_client.plans import body, checkpointed, decisions, unit

pytestmark = [pytest.mark.real, pytest.mark.slow]

EXAMPLES = ROOT / "examples"
RUNTIME = {"gradient_sync": GradientSync.LAST_MICRO_BATCH, "reduce_scatter_max_input_buffers": 2}
LLAMA_UNITS = (
    unit("model.layers.0", forward_prefetch=("model.layers.1",)),
    unit("model.layers.1", reshard_after_forward=False),
    unit("model.norm", "lm_head", reshard_after_forward=False),
    unit(""),
)


def build_model() -> nn.Module:
    model = runpy.run_path(str(EXAMPLES / "train_llama.py"))["build_model"]()
    assert isinstance(model, nn.Module)
    return model


def write_plan(folder: Path) -> str:
    """A plan for the Llama of the examples, in float32 so that only the order of sums is another."""
    made = decisions(
        LLAMA_UNITS,
        shard=2,
        activations=checkpointed("model.layers.1"),
        runtime=RUNTIME,
        optimizer_implementation="for_loop",
        micro_batch=2,
        num_micro_batches=2,
    )
    path = folder / "plan.json"
    path.write_text(Plan.of(body(made, fingerprint=fingerprint(build_model()))).to_json())
    return str(path)


def losses(name: str, *args: str, log_dir: Path, first: int = 0) -> list[float]:
    printed, _ = run_ranks(EXAMPLES / f"train_{name}.py", 2, args, timeout_s=300, log_dir=log_dir)
    lines = [line.split() for line in printed.stdout.splitlines() if line.startswith("step ")]
    assert [line[:3] for line in lines] == [["step", str(step), "loss"] for step in range(first, 5)]
    return [float(line[3]) for line in lines]


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_a_planned_run_loses_what_the_trainer_alone_loses(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason="pip install '.[dev]' brings it")
    planned = losses(name, write_plan(tmp_path), "--cpu", log_dir=tmp_path / "planned")
    alone = losses(name, "--cpu", log_dir=tmp_path / "alone")
    assert planned == pytest.approx(alone, rel=2e-6)
    assert planned[-1] < planned[0] - 0.5


def test_the_trainer_of_transformers_loses_the_same_and_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="pip install '.[dev]' brings it")
    plan, folder = write_plan(tmp_path), tmp_path / "run"
    planned = losses("hf_trainer", plan, "--cpu", "--folder", str(folder), log_dir=tmp_path / "planned")
    alone = losses("hf_trainer", "--cpu", log_dir=tmp_path / "alone")
    assert planned == pytest.approx(alone, rel=2e-6)
    resumed = losses(
        "hf_trainer", plan, "--cpu", "--resume", str(folder / "checkpoint-2"), log_dir=tmp_path / "resumed", first=2
    )
    assert resumed == pytest.approx(planned[2:], rel=2e-6)


def test_torchtitan_parallelizes_by_a_plan(tmp_path: Path) -> None:
    missing = [name for name in ("torchtitan", "triton", "spmd_types") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (docs/launch.md says how)")
    sys.path.insert(0, str(EXAMPLES))
    try:
        model = runpy.run_path(str(EXAMPLES / "train_torchtitan.py"))["build"]().model
    finally:
        sys.path.remove(str(EXAMPLES))
    blocks = [f"layers.{index}" for index in range(6)]
    units = (*map(unit, blocks), unit("norm", "lm_head", reshard_after_forward=False), unit(""))
    made = decisions(
        units, shard=2, activations=checkpointed(*blocks), runtime=RUNTIME, micro_batch=2, num_micro_batches=2
    )
    path = tmp_path / "plan.json"
    path.write_text(Plan.of(body(made, fingerprint=fingerprint(model))).to_json())
    planned = losses("torchtitan", str(path), log_dir=tmp_path / "planned")
    alone = losses("torchtitan", log_dir=tmp_path / "alone")
    assert planned == pytest.approx(alone, rel=2e-6)
