"""A short sample of `make verify-http`."""

from benchmarks.hostile_bodies import KINDS, run


def test_hostile_bodies_get_clear_answers() -> None:
    tally = run(300, seed=1)
    assert tally.wrong == []
    assert {kind for kind, _ in tally.answers} >= set(KINDS) - {"many"}
    assert sum(number for (_, status), number in tally.answers.items() if status >= 400) > 250
