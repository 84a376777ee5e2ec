import subprocess
import sys
from pathlib import Path

import pytest

from runtime_client.dryrun import DryRunError, run_isolated

ROOT = Path(__file__).parents[3]


def test_a_job_that_names_no_function_says_so(decide, job):
    with pytest.raises(DryRunError, match=r"llama.py:missing.* cannot be loaded"):
        run_isolated([job("memory", decide(), function="missing")])


def test_an_error_of_the_plan_names_the_job_and_the_module(decide, job):
    wrong = decide(3).model_copy(update={"units": decide(4).units})
    with pytest.raises(DryRunError, match=r"job 1 .*no module 'layers.3'"):
        run_isolated([job("program", decide(3)), job("memory", wrong)])


def test_an_invalid_job_is_answered_with_its_path():
    finished = subprocess.run(
        [sys.executable, "-m", "runtime_client.dryrun"],
        input='{"build": "x.py:f", "sequence": 0}\n',
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert finished.returncode == 1
    assert "sequence" in finished.stdout
    assert "decisions" in finished.stdout


SCRIPT = """
import sys
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard
from runtime_client.dryrun import DryRunJob, run_job

before = (_fsdp_init._get_post_forward_mesh_info, _fully_shard._get_post_forward_mesh_info)
job = DryRunJob.model_validate_json(sys.stdin.read())
first, second = run_job(job), run_job(job)
assert first == second, "a dry run must be deterministic"
assert before == (_fsdp_init._get_post_forward_mesh_info, _fully_shard._get_post_forward_mesh_info)
assert not dist.is_initialized()
"""


@pytest.mark.parametrize("record", ["memory", "program"])
def test_a_dry_run_repeats_itself_and_leaves_nothing_behind(decide, job, record):
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=job(record, decide(3, mesh=(2, 4))).model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
