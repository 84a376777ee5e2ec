"""The Python of a plan gives the program that the plan predicts, recorded from the real FSDP2 code."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.program_configurations import Configuration
from benchmarks.program_matrix import job, predicted
from planner.program.outline import Outline
from runtime_client.dryrun import DryRunJob
from runtime_client.dryrun.compare import compare
from runtime_client.dryrun.job import parse_record

SCRIPTED = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            mesh=(8, 8), precision="bf16-fp32-out", reshard="mixed", forward_prefetch=3, backward_prefetch=2
        ),
        Configuration(
            mesh=(2, 4),
            reshard="partial",
            kept_after_backward="second",
            num_micro_batches=3,
            gradient_sync="all_reduce_on_last_micro_batch",
            optimizer_event=True,
            separate_group=True,
            reduce_buffers=3,
        ),
        Configuration(activations="selective-second", precision="bf16-fp32", offload="second", tail="unit"),
        Configuration(mesh=(8, 1), block_mesh="second", inside="all", activations="full"),
    )
}
JOBS = [job(one) for one in SCRIPTED.values()]


@pytest.fixture(scope="module")
def scripted() -> dict[str, Outline]:
    return dict(zip(SCRIPTED, run_scripted(JOBS), strict=True))


def run_scripted(jobs: list[DryRunJob]) -> list[Outline]:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.runtime_client.apply.by_script"],
        input="".join(one.model_dump_json() + "\n" for one in jobs),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    answers = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [answer for answer in answers if "record" not in answer] == [], finished.stderr[-2000:]
    return [parse_record(one, answer["record"]) for one, answer in zip(jobs, answers, strict=True)]


@pytest.mark.parametrize("name", SCRIPTED)
def test_the_python_of_a_plan_gives_the_program_of_the_plan(scripted, name):
    found = compare(predicted(SCRIPTED[name]), scripted[name])
    assert found.equal, "\n".join(map(str, found.differences[:10]))
