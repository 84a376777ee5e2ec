"""What of the trainer's own work would not fit: loading on the host, saving on a device."""

import pytest

from planner.plan import make_plan
from planner.schema import DType, FixedChoice, PlanRequest, WeightsWay
from tests.planner.factories import CallSpec, ClusterSpec, tiny_cluster, tiny_model, tiny_request
from tests.published.steps import GIB


def notes(request: PlanRequest) -> list[str]:
    """Notes of the plan about loading and saving."""
    found = make_plan(request).body
    assert found.outcome == "feasible"
    return [note for note in found.reasons.notes if "load" in note or "state dict" in note]


def model_of(num_elements: int, dtype: DType = DType.FLOAT32):
    """A hundred equal blocks, stored in a type."""
    block = CallSpec(shapes=((num_elements // 100,),))
    model = tiny_model(100, block=block, embedding=None, norm=None, head=None, loss=None)
    (parameter,) = model.parameter_sets["block"]
    stored = parameter.model_copy(update={"dtype": dtype})
    return model.model_copy(update={"parameter_sets": {"block": (stored,)}})


@pytest.mark.parametrize(
    ("host_gib", "expected"),
    [
        (500, None),
        (256, "needs 476.8 GiB of its 256.0 GiB of host memory; load it in rank 0 alone (59.6 GiB)"),
        (32, "load each rank's shards: the model alone takes 59.6 GiB"),
        (0, None),
    ],
)
def test_loading_in_every_rank(host_gib: int, expected: str | None) -> None:
    """32e9 bf16 parameters, 8 ranks on a host: 476.8 GiB in every rank, 59.6 GiB in one (reported case 17)."""
    cluster = tiny_cluster(8, spec=ClusterSpec(memory_bytes=2**40))
    (group,) = cluster.node_groups
    group = group.model_copy(update={"host_memory_bytes": host_gib * GIB})
    request = tiny_request(
        model_of(32 * 10**9, DType.BFLOAT16), cluster.model_copy(update={"node_groups": (group,)})
    )
    found = [note for note in notes(request) if "load" in note]
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def ways_of(request: PlanRequest) -> dict[tuple[str, str], WeightsWay]:
    return {(way.task, way.way): way for way in make_plan(request).body.reasons.weights}


def test_what_each_way_of_loading_takes() -> None:
    """The same 32e9 parameters in one host: whole everywhere, whole once, or the shards of one block at a time."""
    cluster = tiny_cluster(8, spec=ClusterSpec(memory_bytes=2**40))
    (group,) = cluster.node_groups
    group = group.model_copy(update={"host_memory_bytes": 256 * GIB})
    request = tiny_request(
        model_of(32 * 10**9, DType.BFLOAT16), cluster.model_copy(update={"node_groups": (group,)})
    )
    found = ways_of(request.model_copy(update={"fixed": (FixedChoice(knob="mesh.shard", value=8),)}))
    every, one, shards = (found["load", way] for way in ("every_rank", "rank_0", "shards"))
    assert [round(way.needed_bytes / GIB, 1) for way in (every, one)] == [476.8, 59.6]
    assert [way.fits for way in (every, one, shards)] == [False, True, True]
    assert shards.needed_bytes == 2 * 32 * 10**9 // 100
    assert found["save", "shards"].needed_bytes == shards.needed_bytes
    assert round(found["save", "rank_0"].needed_bytes / GIB, 1) == 59.6


@pytest.mark.parametrize(("device_gib", "fits"), [(40, False), (45, True)])
def test_saving_as_one_state_dict(device_gib: int, fits: bool) -> None:
    """8e9 parameters in float32 beside 14.901 GiB of shards and state take 44.7 GiB (reported case 17)."""
    cluster = tiny_cluster(6, spec=ClusterSpec(memory_bytes=device_gib * GIB))
    request = tiny_request(model_of(8 * 10**9), cluster)
    found = [note for note in notes(request) if "state dict" in note]
    assert len(found) == (not fits)
    whole = ways_of(request)["save", "on_device"]
    assert (round(whole.needed_bytes / GIB, 1), whole.memory, whole.fits) == (44.7, "device", fits)
    assert fits or "takes 44.7 GiB with the 14.9 GiB that lie there, of 40.0 GiB; save shards" in found[0]
