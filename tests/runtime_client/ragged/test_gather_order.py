"""Aliased gathers on a device with streams: nobody overwrites what is still read, and forward keeps its overlap."""

import json
import os
import subprocess
import sys

import pytest

from tests.real.launch import ROOT

BLOCKS = ["buffer 0", "buffer 1", "buffer 2", "buffer 3"]


@pytest.fixture(scope="module")
def steps() -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.runtime_client.ragged.gather_order"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(params=[0, 1], ids=["first step", "second step"])
def gathers(request: pytest.FixtureRequest, steps: list[dict[str, object]]) -> list[dict[str, object]]:
    return [gather for gather in steps if gather["step"] == request.param]


def test_every_buffer_is_gathered_in_place(gathers: list[dict[str, object]]) -> None:
    """The root once, and stays; blocks in forward and again in backward."""
    forward = [gather["buffer"] for gather in gathers if not gather["backward"]]
    backward = [gather["buffer"] for gather in gathers if gather["backward"]]
    assert forward == ["buffer 4", *BLOCKS]
    assert backward == BLOCKS[::-1]


def test_memory_that_was_freed_is_not_written_before_its_last_reader(gathers: list[dict[str, object]]) -> None:
    assert any(gather["freed"] for gather in gathers)
    for gather in gathers:
        assert gather["freed and not waited for"] == []


def test_forward_gathers_the_next_block_while_one_computes(gathers: list[dict[str, object]]) -> None:
    """From the third gather on one released buffer is pending, not freed, and the gather does not wait for it."""
    forward = [gather for gather in gathers if not gather["backward"]]
    assert [len(gather["released"]) for gather in forward] == [0, 0, 1, 1, 1]
    for gather in forward:
        assert gather["pending and waited for"] == []


def test_nothing_is_pending_in_backward(gathers: list[dict[str, object]]) -> None:
    assert [gather["released"] for gather in gathers if gather["backward"]] == [[]] * 4
