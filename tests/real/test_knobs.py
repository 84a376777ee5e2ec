"""A sample of `make verify-client`: weights as without a plan, collectives as predicted."""

from pathlib import Path

import pytest

from benchmarks.verify_client import measured

pytestmark = [pytest.mark.real, pytest.mark.slow]

SAMPLE = (
    "2 reduce buffers, separate group",
    "prefetch over experts and boundaries",
    "all-reduce on the last micro-batch",
    "event of the optimizer",
    "units in host memory, clipped",
    "ragged layout, gathered in place",
)


def test_knobs_change_no_weight_and_are_issued_as_predicted(tmp_path: Path) -> None:
    for result in measured(SAMPLE, 2, tmp_path):
        assert result["difference"] <= result["allowed"], result["case"]
        assert result["program_equal"], result["case"]
        assert result["moved"], result["case"]
