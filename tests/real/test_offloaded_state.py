"""Optimizer state off the device, on gloo ranks: equal to the last bit to state on the device."""

import json
from typing import Any

import pytest

from tests.real.launch import ROOT, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]

CASES = {
    2: (
        "all units",
        "in backward",
        "some units, clipped",
        "fused, bfloat16",
        "accumulation in backward",
        "no sync, amsgrad",
        "Adam, checkpointed",
        "ragged",
        "beside offloaded parameters",
        "nvme",
        "nvme in backward",
        "refusals",
    ),
    4: ("all units", "hybrid", "nvme"),
}
COMPARED = ("trained", "loaded on device", "loaded elsewhere")
NUM_PARAMETERS = 21

Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=sorted(CASES))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of each rank, by case."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    arguments = [str(folder / "files"), *CASES[request.param]]
    outputs = run_ranks(
        ROOT / "tests/real/offloaded_state.py", request.param, arguments, timeout_s=200, log_dir=folder / "logs"
    )
    lines = [[json.loads(line) for line in output.stdout.splitlines()] for output in outputs]
    return {case: [of_rank[place] for of_rank in lines] for place, case in enumerate(CASES[request.param])}


def test_parameters_and_state_equal_those_of_state_on_the_device(results: Results) -> None:
    """After five steps, and after one more from a checkpoint that is loaded with and without offload."""
    for case, ranks in results.items():
        for found in ranks:
            if case != "refusals":
                assert found["entries"] >= 4 * NUM_PARAMETERS, case
                assert found["offloaded"] == 1, case
                assert [found[what] for what in COMPARED] == [[], [], []], case


def test_gradients_that_were_used_in_backward_cannot_be_clipped_or_added_to(results: Results) -> None:
    if "refusals" not in results:
        pytest.skip("a case of two ranks")
    for found in results["refusals"]:
        assert "'layers.1' was updated in backward" in found["clip"]
        assert "were changed or dropped" in found["torch's clip"]
        assert "call AppliedPlan.begin_micro_batch" in found["backward again"]
