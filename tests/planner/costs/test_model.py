import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.costs.optimizer import optimizer_ns
from planner.schema import (
    ClusterDescription,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    DType,
    InconsistentRequest,
    MeshPlan,
    NodeGroup,
    NumberSource,
    OptimizerName,
    Parameter,
    Precision,
    Profile,
)
from tests.planner.factories import CallSpec, ClusterSpec, tiny_cluster, tiny_model, tiny_profile, tiny_request

PAIR = MeshPlan(shard=2)
SHEET = tiny_cluster().node_groups[0].device


def cost_of(mesh=PAIR, profile=None, cluster=None, **fields):
    request = tiny_request(cluster=cluster or tiny_cluster(mesh.num_ranks), profile=profile or Profile(), **fields)
    return CostModel.of(request, mesh)


def test_measured_durations_reach_the_model():
    cost = cost_of(profile=tiny_profile(launch_ns=3))
    assert [cost.forward_ns("block"), cost.backward_ns("block"), cost.recompute_ns("block")] == [100, 200, 100]
    assert cost.launch_ns == 3
    assert cost.own.all_gather_ns(64) == cost.own.reduce_scatter_ns(64) == 64


def test_kernels_are_those_of_the_kind():
    model = tiny_model(block=CallSpec(shapes=((8, 4),), kernels=(3, 5, 7)))
    cost = CostModel.of(tiny_request(model), PAIR)
    assert [cost.forward_kernels("block"), cost.backward_kernels("block"), cost.recompute_kernels("block")] == [
        3,
        5,
        7,
    ]


def test_launches_take_the_data_sheets_time_unless_measured():
    group = NodeGroup(num_nodes=1, devices_per_node=2, device="H100-80G", intra_node="nvlink4")
    cluster = ClusterDescription(name="c", node_groups=(group,))
    assert cost_of(cluster=cluster).launch_ns == 5_000
    assert cost_of(cluster=cluster, profile=Profile(launch_ns=0)).launch_ns == 0


def test_axes_use_their_own_groups():
    cluster = tiny_cluster(8, devices_per_node=4, spec=ClusterSpec(link_latency_ns=100))
    cost = cost_of(MeshPlan(replicate=2, shard=4), cluster=cluster)
    # Four ranks at 0.8 bytes per ns: 3 steps and 3/4 of the buffer; two ranks: 1 step and 1/2, twice.
    assert cost.own.all_gather_ns(800) == cost.own.reduce_scatter_ns(800) == 300 + 750
    assert cost.own.all_reduce_ns(800) == 2 * (100 + 500)
    assert not cost.all_reduce_shares_link


@pytest.mark.parametrize(
    ("replicate", "shard", "shares"), [(2, 4, False), (4, 2, False), (1, 8, False), (8, 1, False), (2, 8, True)]
)
def test_the_link_is_shared_when_both_axes_cross_nodes(replicate, shard, shares):
    cluster = tiny_cluster(16, devices_per_node=4)
    assert cost_of(MeshPlan(replicate=replicate, shard=shard), cluster=cluster).all_reduce_shares_link is shares


def test_one_rank_communicates_for_nothing():
    own = cost_of(MeshPlan(shard=1)).own
    assert (own.all_gather_ns(10**9), own.reduce_scatter_ns(10**9), own.all_reduce_ns(10**9)) == (0, 0, 0)


def test_copies_move_at_the_attainable_share_of_the_bandwidth():
    # 80 % of 1e12 bytes per second: 800 bytes per ns.
    cost = cost_of()
    assert cost.copy_ns(800, 800) == 2
    assert cost.copy_ns(1, 0) == cost.copy_ns(0, 1) == 1
    assert cost.copy_ns(0, 0) == 0


def test_a_measured_copy_reads_and_writes():
    copies = (
        CopyMeasurement(direction="host_to_device", bytes_per_s=1),
        CopyMeasurement(direction="device_to_device", bytes_per_s=10**9),
    )
    cost = cost_of(profile=Profile(copies=copies))
    assert cost.copy_ns(1_000, 1_000) == 1_000


@given(sizes=st.tuples(st.integers(0, 2**45), st.integers(0, 2**45)))
def test_nothing_gets_faster_with_size(sizes):
    small, large = sorted(sizes)
    cost = COSTS
    for time in (
        cost.own.all_gather_ns,
        cost.own.reduce_scatter_ns,
        cost.own.all_reduce_ns,
        lambda size: cost.copy_ns(size, size),
    ):
        assert 0 <= time(small) <= time(large)


COSTS = cost_of(MeshPlan(replicate=2, shard=4), cluster=tiny_cluster(8, devices_per_node=4))


def test_communication_is_slowed_down_by_compute():
    profile = tiny_profile().model_copy(update={"communication_slowdown_under_compute": 0.2})
    cost = cost_of(profile=profile)
    assert cost.own.all_gather_ns(800) == 1_000
    assert cost.forward_ns("block") == 100


@pytest.mark.parametrize("field", ["communication_slowdown_under_compute", "compute_slowdown_under_communication"])
def test_slowdowns_of_one_are_refused(field):
    with pytest.raises(InconsistentRequest, match=rf"profile\.{field} is 1\.0"):
        cost_of(profile=Profile.model_validate({field: 1.0}))


def test_the_measured_optimizer_rate_replaces_the_data_sheet():
    # 13e9 parameters on 8 ranks at 0.25e9 parameters per second take 6.5 s.
    cost = cost_of(profile=Profile(optimizer_parameters_per_s=250_000_000))
    shards = [
        ("a", Parameter(name="a", shape=(13_000_000_000,)), 1_625_000_000),
        ("frozen", Parameter(name="frozen", shape=(8,), requires_grad=False), 8),
    ]
    assert cost.optimizer_ns(shards) == 6_500_000_000
    assert cost_of().optimizer_ns(shards) == 1_625_000_000 * 4 * 20 // 800


def test_state_of_a_small_replicated_model():
    # 1.2e9 parameters at 16 bytes: 17.881 GiB, of which half is Adam's.
    cost = cost_of()
    moments = cost.optimizer_state_bytes("w", Parameter(name="w", shape=(1_200_000_000,)), 1_200_000_000)
    assert (moments + 8 * 1_200_000_000) / 2**30 == pytest.approx(17.881, abs=0.001)


def test_the_transient_follows_the_workload():
    assert cost_of().optimizer_transient_bytes([("w", Parameter(name="w", shape=(8,)), 8)]) == 32


def test_the_peak_is_that_of_the_compute_dtype():
    group = NodeGroup(num_nodes=1, devices_per_node=2, device="H100-80G", intra_node="nvlink4")
    cluster = ClusterDescription(name="c", node_groups=(group,))
    assert cost_of(cluster=cluster).peak_flops_per_s == 67 * 10**12
    mixed = Precision(param_dtype=DType.BFLOAT16)
    assert cost_of(cluster=cluster, precision=mixed).peak_flops_per_s == 989 * 10**12


def test_a_compute_dtype_without_a_rate_is_refused():
    group = NodeGroup(num_nodes=1, devices_per_node=2, device="V100-32G", intra_node="nvlink2")
    cluster = ClusterDescription(name="c", node_groups=(group,))
    with pytest.raises(InconsistentRequest, match=r"workload\.precision\.param_dtype is bfloat16, .* 'V100-32G'"):
        cost_of(cluster=cluster, precision=Precision(param_dtype=DType.BFLOAT16))


def test_sources_are_distinct_and_say_what_was_measured():
    names = [number.name for number in COSTS.sources()]
    assert len(names) == len(set(names))
    assert {number.source for number in COSTS.sources()} == {NumberSource.ASSUMED}
    measured = cost_of(profile=tiny_profile()).sources()
    assert {number.source for number in measured} == {NumberSource.MEASURED}
    assert {"forward of block", "launch of a kernel", "device memory bandwidth", "all_gather: rate"} <= {
        number.name for number in measured
    }


def test_the_same_request_costs_the_same():
    mesh = MeshPlan(replicate=2, shard=4)
    again = cost_of(mesh, cluster=tiny_cluster(8, devices_per_node=4))
    assert again.sources() == COSTS.sources()
    assert again.own.all_gather_ns(12_345) == COSTS.own.all_gather_ns(12_345)


def test_gathers_over_a_part_use_the_links_that_it_spans():
    cluster = tiny_cluster(16, devices_per_node=4, spec=ClusterSpec(link_latency_ns=100))
    cost = cost_of(MeshPlan(shard=16), cluster=cluster)
    # Two and four ranks on one node, at 0.8 bytes per ns; eight on two nodes.
    assert cost.own.all_gather_ns(800, ranks=2) == 100 + 500
    assert cost.own.all_gather_ns(800, ranks=4) == 300 + 750
    assert cost.own.all_gather_ns(800, ranks=8) == 100 + 300 + 750
    assert cost.own.all_gather_ns(800, ranks=16) == cost.own.all_gather_ns(800) > 1_150
    assert cost.own.all_gather_ns(800, ranks=1) == 0
    with pytest.raises(InconsistentRequest, match="resharded to 3 ranks"):
        cost.own.all_gather_ns(800, ranks=3)


def test_a_measured_gather_over_a_part_counts():
    points = (CurvePoint(size_bytes=1_000, duration_ns=77),)
    measured = CollectiveMeasurement(collective="all_gather", num_ranks=2, points=points)
    cost = cost_of(MeshPlan(shard=4), profile=Profile(collectives=(measured,)))
    assert cost.own.all_gather_ns(1_000, ranks=2) == 77 != cost.own.all_gather_ns(1_000)


def test_only_a_profile_lets_collectives_run_side_by_side():
    assert not cost_of().concurrent_collectives
    assert cost_of(profile=Profile(concurrent_collectives=True)).concurrent_collectives


def test_the_sources_name_what_a_plan_demands():
    cluster = tiny_cluster(4)
    plain = {number.name for number in cost_of(MeshPlan(shard=4), cluster=cluster).sources()}
    request = tiny_request(cluster=cluster, profile=Profile())
    cost = CostModel.of(request, MeshPlan(shard=4), Demands(partial_reshards=(2, 2), offloads=True))
    assert {number.name for number in cost.sources()} - plain == {
        "all_gather over 2 ranks over link: rate",
        "all_gather over 2 ranks over link: latency",
        "host memory traffic of a core",
    }


def test_muon_pays_for_what_it_communicates():
    job = tiny_request(cluster=tiny_cluster(2), optimizer=OptimizerName.MUON, profile=Profile())
    cost = CostModel.of(job, PAIR)
    wide, tall = Parameter(name="w", shape=(100, 200)), Parameter(name="w", shape=(200, 100))
    alone = {
        "wide": optimizer_ns(job.workload, [("w", wide, 10_000)], SHEET, launch_ns=0),
        "tall": optimizer_ns(job.workload, [("w", tall, 10_000)], SHEET, launch_ns=0),
    }
    # Half of each buffer at 0.8 bytes per ns: 40,000 bytes and the Gram matrix of 20,000.
    assert cost.optimizer_ns([("w", wide, 10_000)]) == alone["wide"] + 5 * (2 * 25_000 + 12_500)
    assert cost.optimizer_ns([("w", tall, 10_000)]) == alone["tall"] + 5 * 2 * 2 * 12_500
