"""`dryrun` and `timeline` in a process, on the small model of the dry-run tests."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.__main__ import main
from api.cli.dryrun import on_world
from planner.schema import Decisions, InconsistentRequest, MeshPlan, ModelDescription, StateTier, UnitPlan
from tests.runtime_client.plans import body

PROGRAM = shutil.which("shardwright", path=str(Path(sys.executable).parent))

BUILD = """
from torch import nn

from runtime_client.describe import TrainingExample, token_inputs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def build():
    return TrainingExample(model=Tiny(), inputs=token_inputs)


def wider():
    example = build()
    example.model.head = nn.Linear(16, 128)
    return example
"""


def decisions(mesh: MeshPlan) -> Decisions:
    units = (*(UnitPlan(modules=(f"layers.{index}",)) for index in range(3)), UnitPlan(modules=("",)))
    return Decisions(mesh=mesh, units=units, micro_batch=2, num_micro_batches=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(BUILD)
    (folder / "plan.json").write_text(decisions(MeshPlan(shard=8)).model_dump_json())
    described = run(folder, "describe", "mine:build", "--seq", "16", "--param-dtype", "none", "-o", "model.json")
    assert described.returncode == 0, described.stderr
    cluster = {
        "name": "8 ranks",
        "node_groups": [{"num_nodes": 1, "devices_per_node": 8, "device": "H100-80G", "intra_node": "nvlink4"}],
    }
    request = {
        "model": json.loads((folder / "model.json").read_text()),
        "cluster": cluster,
        "workload": {"micro_batch": 2, "sequence": 16, "global_batch": 16},
    }
    (folder / "request.json").write_text(json.dumps(request))
    return folder


def run(folder, *words):
    assert PROGRAM is not None
    return subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_a_plan_that_fits_its_model_is_equal_and_memory_is_close(folder):
    done = run(folder, "dryrun", "plan.json", "mine:build", "--request", "request.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal  FSDP2 does on 8 ranks what was predicted" in done.stdout
    for word in ("all_gather_copy_in", "reduce_scatter", "edges", "peak of a micro-batch", "optimizer step"):
        assert word in done.stdout


def test_host_memory_of_offloaded_units_is_compared_where_there_is_any(folder):
    # 3 blocks of 134 fp32 elements on each rank: shards, gradients, two moments and foreach's copy of a shard. The
    # client's own state of the root is no part of a dry run.
    plan = decisions(MeshPlan(shard=8))
    on_host = {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    *blocks, root = plan.units
    root = root.model_copy(update={"optimizer_tier": StateTier.HOST})
    units = (*(unit.model_copy(update=on_host) for unit in blocks), root)
    (folder / "offloaded.json").write_text(plan.model_copy(update={"units": units}).model_dump_json())
    done = run(folder, "dryrun", "offloaded.json", "mine:build", "--request", "request.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "host memory" in line]
    assert row.split()[2:4] == ["7.85", "KiB"] == [f"{3 * 134 * 4 * 5 / 1024:.2f}", "KiB"]
    without = run(folder, "dryrun", "plan.json", "mine:build", "--request", "request.json")
    assert "host memory" not in without.stdout


def test_another_model_than_that_of_the_request_differs(folder):
    done = run(folder, "dryrun", "plan.json", "mine:wider", "--request", "request.json")
    assert done.returncode == 1
    assert "other size: all_gather of (root)" in " ".join(done.stdout.split())


def test_without_a_request_the_model_is_described_and_any_world_will_do(folder):
    done = run(folder, "dryrun", "plan.json", "mine:build", "--seq", "16", "--world", "1024")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 1,024 ranks" in done.stdout


def test_a_target_that_is_not_the_model_of_the_plan_is_refused(folder):
    model = ModelDescription.from_json((folder / "model.json").read_text())
    plan = body(decisions(MeshPlan(shard=8)), fingerprint=model.fingerprint)
    (folder / "whole-plan.json").write_text(plan.to_json())
    refused = run(folder, "dryrun", "whole-plan.json", "mine:wider", "--seq", "16")
    assert refused.returncode == 2
    assert f"model_fingerprint is {model.fingerprint}, but this model is" in " ".join(refused.stderr.split())
    equal = run(folder, "dryrun", "whole-plan.json", "mine:build", "--seq", "16")
    assert equal.returncode == 0, equal.stdout + equal.stderr


def test_a_target_that_does_not_exist_is_an_error_of_the_user(folder):
    done = run(folder, "dryrun", "plan.json", "mine:missing", "--seq", "16")
    assert done.returncode == 2
    assert "missing" in done.stderr


def test_sequence_or_request_is_needed(folder, capsys):
    assert main(["dryrun", str(folder / "plan.json"), "mine:build"]) == 2
    assert "--request FILE or --seq" in capsys.readouterr().err


def test_a_larger_world_has_more_replicas_where_there_are_any_and_more_shards_else():
    assert on_world(decisions(MeshPlan(shard=8)), 64).mesh == MeshPlan(shard=64)
    assert on_world(decisions(MeshPlan(replicate=2, shard=8)), 64).mesh == MeshPlan(replicate=8, shard=8)
    with pytest.raises(InconsistentRequest, match="not a multiple of the plan's shard degree 8"):
        on_world(decisions(MeshPlan(replicate=2, shard=8)), 12)


def test_meshes_of_units_grow_alike_and_are_left_out_where_they_become_that_of_the_plan():
    pairs = decisions(MeshPlan(replicate=2, shard=8))
    first, *others = pairs.units
    mixed = pairs.model_copy(update={"units": (first.model_copy(update={"mesh": MeshPlan(shard=16)}), *others)})
    assert on_world(mixed, 64).units[0].mesh == MeshPlan(shard=64)
    assert on_world(mixed, 8).units[0].mesh is None
    assert on_world(mixed, 8).mesh == MeshPlan(shard=8)


def test_timeline_writes_a_trace(folder):
    place = folder / "trace.json"
    words = ["timeline", str(folder / "plan.json"), "--request", str(folder / "request.json")]
    assert main([*words, "-o", str(place)]) == 0
    trace = json.loads(place.read_text())
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"all_gather layers.1", "optimizer step", "memory", "forward layers.2"} <= names
