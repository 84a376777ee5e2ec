"""A short sample of `make verify-regeneration`."""

from benchmarks.regeneration import run


def test_plans_are_made_again_once_whatever_is_killed() -> None:
    found = run(6, 2, 2, seed=3)
    assert found.wrong == []
    assert sum(found.verdicts.values()) == found.num_jobs == 6
    assert found.known_s
