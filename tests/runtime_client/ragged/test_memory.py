"""Peaks at 64 ranks under the fake process group: ragged shards cost what FSDP2's own do, aliased ones less."""

import json
import os
import subprocess
import sys

import pytest

from tests.real.launch import ROOT

pytestmark = pytest.mark.slow

MODES = ("float32", "mixed", "checkpointed", "hybrid", "kept", "whole gradients", "partly resharded", "grouped")
BLOCK_BYTES = 4 * (4 * 512**2 + 3 * 512 * 1408 + 2 * 512)
"""Gathered parameters of a block in float32."""


@pytest.fixture(scope="module")
def peaks() -> dict[tuple[str, str], dict[str, int]]:
    command = [sys.executable, "-m", "tests.runtime_client.ragged.measure_memory", *MODES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(line.pop("mode"), line.pop("arm")): line for line in found}


@pytest.mark.parametrize("mode", MODES)
def test_within_two_percent_of_even_shards(peaks: dict[tuple[str, str], dict[str, int]], mode: str) -> None:
    even = peaks[mode, "even"]
    for arm in ("ragged", "aliased"):
        for moment, found in peaks[mode, arm].items():
            assert found <= 1.02 * even[moment], f"{arm}: {moment}"


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "kept"])
def test_gathering_in_place_lowers_the_peak_of_forward(
    peaks: dict[tuple[str, str], dict[str, int]], mode: str
) -> None:
    """By nearly the buffer of a block that would be copied out of, or more."""
    saved = peaks[mode, "ragged"]["forward"] - peaks[mode, "aliased"]["forward"]
    assert saved >= 0.9 * BLOCK_BYTES / (2 if mode == "mixed" else 1)


def test_where_nothing_is_resharded_a_step_holds_no_second_buffer(
    peaks: dict[tuple[str, str], dict[str, int]],
) -> None:
    """All units stay gathered in forward; each is gathered into itself."""
    assert peaks["kept", "aliased"]["forward"] < peaks["kept", "ragged"]["forward"]
