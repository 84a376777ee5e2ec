import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.schema import (
    ClusterDescription,
    CopyMeasurement,
    InconsistentRequest,
    MeshPlan,
    NodeGroup,
    NumberSource,
    Parameter,
    Profile,
    Quantiles,
)
from tests.planner.factories import tiny_request

A100 = NodeGroup(
    num_nodes=1,
    devices_per_node=8,
    device="A100-40G",
    host_memory_bytes=2**40,
    host_cores=128,
    intra_node="nvlink3",
)


def costs(profile=None, **fields):
    group = A100.model_copy(update=fields)
    cluster = ClusterDescription(name="c", node_groups=(group,))
    return CostModel.of(tiny_request(cluster=cluster, profile=profile or Profile()), MeshPlan(shard=8))


def test_copies_take_the_attainable_share_of_the_host_link():
    # 80 % of 31.5e9 bytes per second.
    assert costs().host_to_device_ns(25_200) == costs().device_to_host_ns(25_200) == 1_000
    assert costs().host_to_device_ns(0) == 0


def test_measured_copies_have_a_direction():
    copies = (
        CopyMeasurement(direction="host_to_device", bytes_per_s=10**9),
        CopyMeasurement(direction="host_to_device", bytes_per_s=2 * 10**9),
        CopyMeasurement(direction="device_to_device", bytes_per_s=1),
    )
    cost = costs(Profile(copies=copies))
    assert cost.host_to_device_ns(1_000) == 500
    assert cost.device_to_host_ns(25_200) == 1_000


def test_only_pinned_copies_by_themselves_count():
    copies = (
        CopyMeasurement(direction="host_to_device", bytes_per_s=10**9),
        CopyMeasurement(direction="host_to_device", bytes_per_s=10**6, pinned=False),
        CopyMeasurement(direction="host_to_device", bytes_per_s=10**7, together=True),
    )
    assert costs(Profile(copies=copies)).host_to_device_ns(1_000) == 1_000


def test_robust_copies_are_99th_percentiles():
    quantiles = Quantiles(p10=900, p99=4_000)
    copy = CopyMeasurement(direction="host_to_device", bytes_per_s=10**9, size_bytes=1_000, quantiles=quantiles)
    cluster = ClusterDescription(name="c", node_groups=(A100,))
    request = tiny_request(cluster=cluster, profile=Profile(copies=(copy,)))
    for robust, expected_ns in ((False, 1_000), (True, 4_000)):
        asked = request.model_copy(update={"robust": robust})
        assert CostModel.of(asked, MeshPlan(shard=8)).host_to_device_ns(1_000) == expected_ns


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host"])
def test_copies_without_a_bandwidth_are_refused_when_asked_for(direction):
    cost = CostModel.of(tiny_request(profile=Profile()), MeshPlan(shard=2))
    copy_ns = getattr(cost, f"{direction}_ns")
    assert copy_ns(0) == 0
    with pytest.raises(InconsistentRequest, match=f"device 'tiny' has no host_link_bytes_per_s .*'{direction}'"):
        copy_ns(1)


def test_thirteen_billion_parameters_on_the_host():
    # 1.625e9 parameters on each of 8 ranks at 0.25e9 per second and rank: 6.5 s.
    shards = [
        ("a", Parameter(name="a", shape=(13_000_000_000,)), 1_625_000_000),
        ("frozen", Parameter(name="frozen", shape=(8,), requires_grad=False), 8),
    ]
    measured = Profile(cpu_optimizer_parameters_per_s_per_core=15_625_000)
    assert costs(measured).cpu_optimizer_ns(shards) == 6_500_000_000
    # Without a measurement: 80 bytes for each parameter at 16 cores times 1.2e9 bytes per second.
    assert costs().cpu_optimizer_ns(shards) == -(-1_625_000_000 * 80 * 10 // 192)
    assert costs().cpu_optimizer_ns(shards) == pytest.approx(6.5e9, rel=0.05)
    assert costs().cpu_optimizer_ns(shards[1:]) == 0


def test_an_optimizer_step_without_cores_is_refused():
    shards = [("a", Parameter(name="a", shape=(8,)), 8)]
    for profile in (Profile(), Profile(cpu_optimizer_parameters_per_s_per_core=10)):
        with pytest.raises(InconsistentRequest, match="host_cores is 0"):
            costs(profile, host_cores=0).cpu_optimizer_ns(shards)


def test_the_host_is_shared_by_its_ranks():
    assert costs().host_budget_bytes == 2**37
    assert costs(host_memory_bytes=0).host_budget_bytes == 0


def test_the_poorest_host_counts():
    groups = (A100, A100.model_copy(update={"host_memory_bytes": 2**39, "host_cores": 64}))
    cluster = ClusterDescription(name="c", node_groups=groups, inter_node="ib-hdr-200")
    cost = CostModel.of(tiny_request(cluster=cluster, profile=Profile()), MeshPlan(shard=16))
    assert cost.host_budget_bytes == 2**36
    shards = [("a", Parameter(name="a", shape=(10**6,)), 10**6)]
    assert cost.cpu_optimizer_ns(shards) == pytest.approx(2 * costs().cpu_optimizer_ns(shards), abs=1)


def test_sources_of_a_plan_that_offloads():
    measured = Profile(
        cpu_optimizer_parameters_per_s_per_core=5,
        copies=(CopyMeasurement(direction="device_to_host", bytes_per_s=7),),
    )
    cluster = ClusterDescription(name="c", node_groups=(A100,))
    for profile, expected in (
        (
            Profile(),
            {"copy host to device": NumberSource.ASSUMED, "host memory traffic of a core": NumberSource.ASSUMED},
        ),
        (
            measured,
            {
                "copy device to host": NumberSource.MEASURED,
                "parameters updated by a core of the host": NumberSource.MEASURED,
            },
        ),
    ):
        request = tiny_request(cluster=cluster, profile=profile)
        plain = CostModel.of(request, MeshPlan(shard=8)).sources()
        offloading = CostModel.of(request, MeshPlan(shard=8), Demands(offloads=True)).sources()
        found = {number.name: number.source for number in offloading if number not in plain}
        assert expected.items() <= found.items()
        assert len(found) == 3


@given(sizes=st.tuples(st.integers(0, 2**45), st.integers(0, 2**45)))
def test_copies_never_get_faster_with_size(sizes):
    small, large = sorted(sizes)
    cost = COSTS
    assert 0 <= cost.host_to_device_ns(small) <= cost.host_to_device_ns(large)


COSTS = costs()
