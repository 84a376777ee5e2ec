"""`apply_plan` on gloo ranks against the same configuration written by hand: equal to the last bit."""

import json
from typing import Any

import pytest

from tests.real.launch import ROOT, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]

CASES = {
    2: (
        "default",
        "keep",
        "checkpointing",
        "activation_offload",
        "prefetch",
        "groups",
        "bfloat16",
        "float32_outputs",
        "two_micro_batches",
        "sync_last_micro_batch",
        "knobs",
        "kept_after_backward",
        "offload",
        "other_dims",
        "selective",
        "float16",
        "unused",
    ),
    4: (
        "default",
        "keep",
        "hybrid",
        "unit_meshes",
        "prefetch",
        "groups",
        "two_micro_batches",
        "all_reduce_last_micro_batch",
        "reshard_to_two",
        "everything",
    ),
}
SAME_STRUCTURE = ("default", "two_micro_batches", "sync_last_micro_batch", "kept_after_backward")
"""Cases that shard as the default does."""

Results = dict[tuple[int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module", params=sorted(CASES))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By (number of ranks, case), the result of each rank."""
    num_ranks: int = request.param
    outputs = run_ranks(
        ROOT / "tests/real/train_both.py",
        num_ranks,
        CASES[num_ranks],
        timeout_s=300,
        log_dir=tmp_path_factory.mktemp(f"ranks{num_ranks}"),
    )
    lines = [list(map(json.loads, output.stdout.splitlines())) for output in outputs]
    return {
        (num_ranks, case): [rank_lines[index] for rank_lines in lines]
        for index, case in enumerate(CASES[num_ranks])
    }


def test_planned_equals_by_hand(results: Results) -> None:
    for (num_ranks, case), ranks in results.items():
        assert len(ranks) == num_ranks
        for result in ranks:
            for what in ("structure", "collectives", "losses", "shards"):
                assert result["plan"][what] == result["hand"][what], f"{case} on {num_ranks} ranks: {what}"


def test_every_case_trains_and_differs_from_the_default_where_it_should(results: Results) -> None:
    num_ranks = next(iter(results))[0]
    default = results[num_ranks, "default"][0]["plan"]
    for (_, case), ranks in results.items():
        mine = ranks[0]["plan"]
        assert float.fromhex(mine["losses"][-1]) < float.fromhex(mine["losses"][0])
        if case not in SAME_STRUCTURE:
            assert mine["structure"] != default["structure"], case


def test_default_gathers_and_reduces_as_often_as_fsdp2_does(results: Results) -> None:
    """Four blocks and a root: 2 x 4 + 1 all-gathers and 4 + 1 reduce-scatters a step."""
    num_ranks = next(iter(results))[0]
    issued = [line.split()[0] for line in results[num_ranks, "default"][0]["plan"]["collectives"]]
    assert issued.count("_allgather_base_") == 5 * 9
    assert issued.count("_reduce_scatter_base_") == 5 * 5


def test_units_on_two_meshes_learn_the_same(results: Results) -> None:
    """Twelve (losses) numbers of the same data, up to the order in which gradients are added."""
    if (4, "unit_meshes") not in results:
        pytest.skip("needs four ranks")
    for mine, other in zip(results[4, "unit_meshes"], results[4, "two_micro_batches"], strict=True):
        losses = [[float.fromhex(loss) for loss in one["plan"]["losses"]] for one in (mine, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
