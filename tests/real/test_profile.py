"""`shardwright profile` on two gloo ranks: curves of collectives, overlap, and a plan that uses them."""

from pathlib import Path

import pytest

from api.cli.documents import load_profile
from planner.schema import Profile
from tests.real.launch import RankOutput, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RankOutput]]:
    folder = tmp_path_factory.mktemp("profile")
    output = folder / "profile.json"
    words = ["profile", "tests.real.profiled:build", "--seq", "32", "--seconds", "1", "--cluster", "gloo-2"]
    outputs = run_ranks("tests/real/profiled.py", 2, [*words, "-o", str(output)], log_dir=folder / "logs")
    return output, outputs


@pytest.fixture(scope="module")
def made(ranks: tuple[Path, list[RankOutput]]) -> Profile:
    return load_profile(ranks[0])


def test_collectives_of_the_world(made: Profile) -> None:
    found = {(curve.collective, curve.num_ranks, curve.num_nodes) for curve in made.collectives}
    assert found == {(name, 2, 1) for name in ("all_gather", "reduce_scatter", "all_reduce")}
    for curve in made.collectives:
        sizes = [point.size_bytes for point in curve.points]
        assert sizes == sorted(sizes)
        assert len(sizes) > 1
        for point in curve.points:
            assert point.quantiles is not None
            assert point.quantiles.p10 <= point.duration_ns <= point.quantiles.p99
            assert point.quantiles.num_samples >= 5


def test_samples_of_both_ranks_count(made: Profile) -> None:
    assert {call.provenance.num_samples for call in made.calls} <= set(range(10, 202))
    assert all(call.provenance.num_samples >= 10 for call in made.calls)


def test_overlap_is_measured(made: Profile) -> None:
    assert 0 <= made.compute_slowdown_under_communication < 1
    assert 0 <= made.communication_slowdown_under_compute < 1
    assert made.cluster == "gloo-2"


def test_only_the_first_rank_says_anything(ranks: tuple[Path, list[RankOutput]]) -> None:
    first, second = (output.stderr for output in ranks[1])
    assert "calls of block" in first
    assert "all_gather of 2 ranks on 1 nodes" in first
    assert "calls of block" not in second
