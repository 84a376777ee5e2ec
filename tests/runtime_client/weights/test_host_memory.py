"""Ways of loading that this machine has no memory for are refused before anything is built."""

from pathlib import Path

import pytest

from planner.schema import PlanBody, Reasons, WeightsWay
from runtime_client.weights import check_host_memory
from runtime_client.weights.errors import HostMemoryTooSmall
from runtime_client.weights.host_memory import machine_bytes
from tests.runtime_client.plans import body, decisions, unit

GIB = 2**30


def plan() -> PlanBody:
    ways = {"every_rank": 477 * GIB, "rank_0": 60 * GIB, "shards": GIB}
    weights = [
        {"task": "load", "way": way, "memory": "host", "needed_bytes": needed} for way, needed in ways.items()
    ]
    return body(
        decisions((unit(""),), shard=8), reasons=Reasons(weights=tuple(map(WeightsWay.model_validate, weights)))
    )


def test_what_the_machine_has_no_room_for() -> None:
    with pytest.raises(
        HostMemoryTooSmall, match=r"every_rank takes 477\.0 GiB .* are 256\.0 GiB: build .* on_meta"
    ):
        check_host_memory(plan(), "every_rank", host_bytes=256 * GIB)
    with pytest.raises(HostMemoryTooSmall, match=r"rank_0 takes 60\.0 GiB .* load_safetensors"):
        check_host_memory(plan(), "rank_0", host_bytes=32 * GIB)
    found = check_host_memory(plan(), "rank_0", host_bytes=256 * GIB)
    assert found is not None
    assert found.needed_bytes == 60 * GIB


def test_a_plan_that_does_not_say_is_not_refused() -> None:
    assert check_host_memory(body(decisions((unit(""),), shard=8)), "every_rank", host_bytes=0) is None


def test_memory_of_this_machine() -> None:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(line for line in lines if line.startswith("MemTotal"))
    assert 0 < machine_bytes() <= 1.05 * 1024 * int(total.split()[1])
