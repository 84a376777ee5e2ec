"""Ctrl-C in the middle of a search, sent to a process of its own when its progress says how far it is."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planner.schema import Plan

PROGRAM = shutil.which("shardwright", path=str(Path(sys.executable).parent))


def interrupted(tmp_path: Path, words: list[str], at: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `plan`, interrupted once a line of its progress contains `at`."""
    assert PROGRAM is not None
    command = [PROGRAM, "plan", *words, "--json"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if at in line:
                process.send_signal(signal.SIGINT)
                break
        output, errors = process.communicate(timeout=120)
    return process.returncode, output, "".join(lines) + errors


def _heed_interrupts() -> None:
    """A job that a shell put into the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


EXACT = ["--seq", "4096", "--gap", "0", "--effort", "5000"]
LONG = ["llama-3-8b", "h100-64", "--global-batch", "256", *EXACT]
FIXED = (
    *("mesh.shard=64", "units.*=true", "blocks_per_unit=1", "split_blocks=false"),
    *("forward_prefetch=2", "backward_prefetch=2", "reduce_scatter_max_input_buffers=2"),
)
HARD = ["qwen3-30b-a3b", "h100-64", "--global-batch", "64", *EXACT, *(f"--fix={choice}" for choice in FIXED)]
"""One global choice that CP-SAT is needed for: computation, links and memory all bind."""


@pytest.mark.parametrize(("words", "at"), [(LONG, "best"), (HARD, "proving")])
def test_the_best_plan_so_far_is_kept_and_marked(tmp_path: Path, words: list[str], at: str) -> None:
    code, output, errors = interrupted(tmp_path, words, at)
    assert code == 0, errors
    plan = Plan.from_json(output)
    certificate = plan.body.certificate
    assert plan.verify()
    assert certificate is not None
    assert certificate.status == "provisional"
    assert certificate.checker == "passed"
    assert certificate.lower_bound < certificate.value
    assert (certificate.lower_bound > 0) == (at == "proving")


def test_without_a_plan_there_is_one_line(tmp_path: Path) -> None:
    words = ["llama-3-70b", "h100-64", "--seq", "8192", "--global-batch", "64", "--budget", "40GiB"]
    code, output, errors = interrupted(tmp_path, words, "no plan yet")
    assert code == 130
    assert output == ""
    assert errors.splitlines()[-1] == "error: interrupted before there was anything to keep"
    assert "Traceback" not in errors
