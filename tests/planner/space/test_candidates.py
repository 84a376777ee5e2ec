"""Units on the host: each set of them is tried once, however few units there are."""

from collections import defaultdict

import pytest

from benchmarks.search_requests import random_request
from planner.schema import FixedChoice, InconsistentRequest, PlanRequest
from planner.search import search
from planner.space.candidate import Candidate, Offload, candidates


def request_of(seed: int, **update: object) -> PlanRequest:
    """A random one whose hosts have memory."""
    request = random_request(seed)
    groups = tuple(one.model_copy(update={"host_memory_bytes": 2**40}) for one in request.cluster.node_groups)
    cluster = request.cluster.model_copy(update={"node_groups": groups})
    return request.model_copy(update={"client_features": None, "cluster": cluster, **update})


def others(candidate: Candidate) -> object:
    """All but what is on the host."""
    return (
        candidate.mesh,
        candidate.training,
        candidate.gradient_sync,
        candidate.keeps_gathered,
        candidate.cut,
        candidate.alias_gathers,
        tuple(unit.modules for unit in candidate.partition.units),
    )


def test_shares_of_sixteen_units() -> None:
    """Units 7 and 15 are an eighth; the root (0) goes last."""
    sizes = {one: sum(map(one.has, range(16))) for one in Offload}
    assert sizes == {
        Offload.NONE: 0,
        Offload.EIGHTH: 2,
        Offload.QUARTER: 4,
        Offload.HALF: 8,
        Offload.THREE_QUARTERS: 12,
        Offload.ALL: 16,
    }
    assert [one for one in Offload if one.has(0)] == [Offload.ALL]


@pytest.mark.parametrize("seed", range(12))
def test_no_two_candidates_put_the_same_units_on_the_host(seed: int) -> None:
    request = request_of(seed)
    found: dict[object, list[tuple[bool, ...]]] = defaultdict(list)
    for candidate in candidates(request, offloads=True):
        if not candidate.activation_offload:
            found[others(candidate)].append(candidate.on_host)
    assert found
    for sets in found.values():
        assert len(set(sets)) == len(sets)
        assert all(map(any, sets))
        assert all(sets[0])


def test_a_share_that_no_unit_is_in_cannot_be_fixed() -> None:
    eighth, third = (FixedChoice(knob="offload", value=value) for value in ("eighth", "third"))
    assert all(len(one.partition.units) >= 8 for one in candidates(request_of(1, fixed=(eighth,)), offloads=True))
    with pytest.raises(InconsistentRequest, match="no plan is left"):
        search(request_of(1, fixed=(third,)))
