import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.topology import Topology, axis_group
from planner.schema import (
    ClusterDescription,
    InconsistentRequest,
    LinkSheet,
    MeshPlan,
    NodeGroup,
    Tenancy,
    UnknownName,
    UnsupportedField,
)


def cluster(num_nodes, devices_per_node, **changes):
    group = NodeGroup(
        num_nodes=num_nodes, devices_per_node=devices_per_node, device="H100-80G", intra_node="nvlink4"
    )
    fields = {"name": "c", "node_groups": (group,), "inter_node": "ib-ndr-400" if num_nodes > 1 else None}
    return ClusterDescription(**{**fields, **changes})


def test_one_node_uses_the_link_in_the_node():
    group = axis_group(cluster(1, 8), MeshPlan(shard=8), "shard")
    assert (group.num_ranks, group.num_nodes, group.crosses_nodes) == (8, 1, False)
    assert group.link.name == "nvlink4"


def test_a_full_shard_mesh_crosses_nodes():
    group = axis_group(cluster(8, 8), MeshPlan(shard=64), "shard")
    assert (group.num_ranks, group.num_nodes, group.ranks_per_node) == (64, 8, 8)
    assert group.link.name == "ib-ndr-400"


def test_a_hybrid_mesh_shards_in_the_node_and_replicates_between_nodes():
    mesh = MeshPlan(replicate=8, shard=8)
    shard, replicate = (axis_group(cluster(8, 8), mesh, axis) for axis in ("shard", "replicate"))
    assert not shard.crosses_nodes
    assert (replicate.num_nodes, replicate.ranks_per_node, replicate.link.name) == (8, 1, "ib-ndr-400")


def test_small_shard_groups_leave_several_replicas_on_a_node():
    mesh = MeshPlan(replicate=16, shard=4)
    replicate = axis_group(cluster(8, 8), mesh, "replicate")
    assert (replicate.num_nodes, replicate.ranks_per_node) == (8, 2)


def test_groups_that_straddle_nodes_are_uneven_and_the_worst_counts():
    # Shard groups 0..11 and 12..23 on nodes of eight: each lies on two nodes with eight and four ranks.
    group = axis_group(cluster(3, 8), MeshPlan(replicate=2, shard=12), "shard")
    assert (group.num_nodes, group.is_even, group.crosses_nodes) == (2, False, True)
    # On nodes of six, groups of four: the first lies on one node, the second on two.
    mixed = axis_group(cluster(2, 6), MeshPlan(replicate=3, shard=4), "shard")
    assert (mixed.num_nodes, mixed.is_even) == (2, False)


def test_rails_carry_groups_of_equal_device_index():
    rails = cluster(4, 8, rail="ib-xdr-800")
    assert axis_group(rails, MeshPlan(replicate=4, shard=8), "replicate").link.name == "ib-xdr-800"
    assert axis_group(rails, MeshPlan(shard=32), "shard").link.name == "ib-xdr-800"
    # Ranks 0 and 6 sit at index 0 of node 0 and at index 2 of node 1.
    off_rail = cluster(3, 4, rail="ib-xdr-800")
    assert axis_group(off_rail, MeshPlan(replicate=2, shard=6), "replicate").link.name == "ib-ndr-400"


def test_other_jobs_take_their_share_of_the_network_only():
    shared = cluster(2, 8, tenancy=Tenancy(exclusive=False, bandwidth_share=0.25))
    assert axis_group(shared, MeshPlan(shard=16), "shard").link.bytes_per_s == 12_500_000_000
    assert axis_group(shared, MeshPlan(shard=8), "shard").link.bytes_per_s == 450_000_000_000


def test_device_memory_may_be_given_exactly():
    base = cluster(1, 8)
    group = base.node_groups[0].model_copy(update={"device_memory_bytes": 85_000_000_000})
    assert Topology.of(base).device_memory_bytes == 80_000_000_000
    assert Topology.of(base.model_copy(update={"node_groups": (group,)})).device_memory_bytes == 85_000_000_000


def test_equal_node_groups_count_together():
    base = cluster(1, 8)
    doubled = base.model_copy(update={"node_groups": base.node_groups * 2, "inter_node": "ib-ndr-400"})
    assert axis_group(doubled, MeshPlan(shard=16), "shard").num_nodes == 2


@st.composite
def clusters_and_shards(draw):
    num_nodes, per_node = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    num_ranks = num_nodes * per_node
    return num_nodes, per_node, draw(st.sampled_from([d for d in range(1, num_ranks + 1) if num_ranks % d == 0]))


@given(sizes=clusters_and_shards())
def test_a_group_spans_no_fewer_nodes_than_it_must(sizes):
    num_nodes, per_node, shard = sizes
    mesh = MeshPlan(replicate=num_nodes * per_node // shard, shard=shard)
    for axis, size in (("shard", mesh.shard), ("replicate", mesh.replicate)):
        group = axis_group(cluster(num_nodes, per_node), mesh, axis)
        assert group.num_ranks == size
        assert -(-size // per_node) <= group.num_nodes <= min(size, num_nodes)


@pytest.mark.parametrize(
    ("field", "value"), [("device", "A100-80G"), ("devices_per_node", 4), ("intra_node", "pcie5-x16")]
)
def test_unequal_nodes_are_refused_with_the_field(field, value):
    base = cluster(1, 8)
    other = base.node_groups[0].model_copy(update={field: value})
    mixed = base.model_copy(update={"node_groups": (base.node_groups[0], other), "inter_node": "ib-ndr-400"})
    with pytest.raises(UnsupportedField, match=rf"cluster\.node_groups\[1\]\.{field} .*equal nodes"):
        Topology.of(mixed)


def test_nodes_need_a_link_between_them():
    with pytest.raises(InconsistentRequest, match=r"cluster\.inter_node is missing, but cluster 'c' has 2 nodes"):
        Topology.of(cluster(2, 8, inter_node=None))


def test_a_mesh_must_fit_the_cluster():
    with pytest.raises(InconsistentRequest, match=r"mesh \(2, 8\) needs 16 ranks, but the cluster has 8 devices"):
        axis_group(cluster(1, 8), MeshPlan(replicate=2, shard=8), "shard")


def test_no_share_of_the_network_is_refused():
    with pytest.raises(InconsistentRequest, match=r"cluster\.tenancy\.bandwidth_share leaves nothing"):
        Topology.of(cluster(2, 8, tenancy=Tenancy(bandwidth_share=0.0)))


def test_names_must_be_in_the_catalog():
    with pytest.raises(UnknownName, match=r"unknown link 'rdma'; known: "):
        Topology.of(cluster(2, 8, inter_node="rdma"))


def test_inline_link_sheets_are_taken_as_they_are():
    sheet = LinkSheet(name="mine", bytes_per_s=7, latency_ns=1)
    assert axis_group(cluster(2, 8, inter_node=sheet), MeshPlan(shard=16), "shard").link == sheet


@pytest.mark.parametrize(
    ("num_ranks", "num_nodes", "is_even"), [(4, 1, True), (8, 1, True), (16, 2, True), (32, 4, True), (2, 1, True)]
)
def test_neighbours_are_runs_of_consecutive_ranks(num_ranks, num_nodes, is_even):
    group = Topology.of(cluster(8, 8)).neighbours(MeshPlan(shard=64), num_ranks)
    assert (group.num_ranks, group.num_nodes, group.is_even) == (num_ranks, num_nodes, is_even)
    assert group.link.name == ("nvlink4" if num_nodes == 1 else "ib-ndr-400")


def test_neighbours_of_a_hybrid_mesh_lie_in_its_shard_groups():
    # Shard groups of twelve on nodes of eight; the neighbours 6 to 11 lie on two nodes, two and four ranks each.
    group = Topology.of(cluster(3, 8)).neighbours(MeshPlan(replicate=2, shard=12), 6)
    assert (group.num_ranks, group.num_nodes, group.is_even) == (6, 2, False)


@pytest.mark.parametrize("num_ranks", [0, 3, 16])
def test_neighbours_divide_the_shard_degree(num_ranks):
    with pytest.raises(InconsistentRequest, match=f"resharded to {num_ranks} ranks: the shard degree is 8"):
        Topology.of(cluster(2, 8)).neighbours(MeshPlan(replicate=2, shard=8), num_ranks)
