"""The search takes optimizer state off the device where nothing else fits, to drives where hosts are small."""

from planner.plan import make_plan
from planner.schema import (
    ClientFeature,
    CopyMeasurement,
    Limits,
    Objective,
    PlanBody,
    PlanRequest,
    SearchLimits,
    StateTier,
)
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_profile, tiny_request

COPIES = tuple(
    CopyMeasurement(direction=direction, bytes_per_s=10**8) for direction in ("host_to_device", "device_to_host")
)
DRIVE = {"nvme_bytes": 2**30, "nvme_read_bytes_per_s": 10**8, "nvme_write_bytes_per_s": 10**8}
STATE_ALONE = (ClientFeature.OPTIMIZER_OFFLOAD, ClientFeature.OPTIMIZER_NVME)


def request(**group: int) -> PlanRequest:
    """Eight blocks on two ranks; each of eight micro-batches would copy whole units twice, over a slow link."""
    profile = tiny_profile().model_copy(
        update={"copies": COPIES, "cpu_optimizer_parameters_per_s_per_core": 10**9, "launch_ns": 0}
    )
    (nodes,) = tiny_cluster(2).node_groups
    nodes = nodes.model_copy(update={"host_cores": 8, "host_memory_bytes": 2**30, **group})
    cluster = tiny_cluster(2).model_copy(update={"node_groups": (nodes,)})
    model = tiny_model(8, block=CallSpec(shapes=((64, 64),), saved=10))
    made = tiny_request(model, cluster, profile=profile, num_micro_batches=8)
    search = SearchLimits(gap=0.05, deterministic_time=5.0)
    return made.model_copy(update={"search": search, "client_features": STATE_ALONE})


def least_bytes() -> int:
    """What the leanest plan needs that has everything on the device."""
    body = make_plan(request().model_copy(update={"objective": Objective.PEAK_MEMORY, "client_features": ()})).body
    assert body.predictions is not None
    return body.predictions.peak.reserved_bytes


def planned(share: float, asked: PlanRequest, **update: object) -> PlanBody:
    limits = Limits(memory_bytes=int(share * least_bytes()))
    return make_plan(asked.model_copy(update={"limits": limits, **update})).body


def tiers(body: PlanBody) -> set[tuple[StateTier, StateTier]]:
    assert body.decisions is not None
    return {(unit.parameter_tier, unit.optimizer_tier) for unit in body.decisions.units}


def test_state_leaves_the_device_only_where_nothing_else_fits() -> None:
    assert tiers(planned(1.0, request())) == {(StateTier.DEVICE, StateTier.DEVICE)}
    body = planned(0.9, request(**DRIVE))
    assert (StateTier.DEVICE, StateTier.HOST) in tiers(body)
    assert body.requires.client_features == (ClientFeature.OPTIMIZER_OFFLOAD,)
    assert body.predictions is not None
    assert body.predictions.host_bytes > 0


def test_a_drive_takes_what_the_host_cannot() -> None:
    small = {"host_memory_bytes": 2 * 120_000}
    assert planned(0.75, request(**small)).outcome == "infeasible"
    body = planned(0.75, request(**small, **DRIVE))
    assert (StateTier.DEVICE, StateTier.NVME) in tiers(body)
    assert body.requires.client_features == (ClientFeature.OPTIMIZER_NVME,)
    assert body.predictions is not None
    assert body.predictions.nvme_bytes > 0


def test_a_drive_too_small_or_a_client_that_cannot() -> None:
    assert planned(0.9, request(**DRIVE), client_features=()).outcome == "infeasible"
    nvme = (ClientFeature.OPTIMIZER_NVME,)
    assert planned(0.9, request(**DRIVE | {"nvme_bytes": 10_000}), client_features=nvme).outcome == "infeasible"
    assert (StateTier.DEVICE, StateTier.NVME) in tiers(planned(0.9, request(**DRIVE), client_features=nvme))
