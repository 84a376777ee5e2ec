import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.costs.memory import communicator_bytes, communicator_sizes
from planner.schema import (
    ClusterDescription,
    Limits,
    MeshPlan,
    NodeGroup,
    NumberSource,
    Profile,
    Reserve,
    RuntimeKnobs,
    StateTier,
    UnitPlan,
)
from tests.planner.factories import tiny_cluster, tiny_decisions, tiny_request

PROCESS_GROUPS = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
replicate, shard, other_replicate, other_shard = map(int, sys.argv[1:])
dist.init_process_group("fake", rank=0, world_size=replicate * shard, store=FakeStore())

def mesh_of(replicate, shard):
    shape, names = ((replicate, shard), ("r", "s")) if replicate > 1 else ((shard,), ("s",))
    return init_device_mesh("cpu", shape, mesh_dim_names=names)

mesh = mesh_of(replicate, shard)
*blocks, other = [torch.nn.Linear(8, 8) for _ in range(4)]
for block in blocks:
    fully_shard(block, mesh=mesh, reshard_after_forward=2)
if (replicate, shard) != (other_replicate, other_shard):
    fully_shard(other, mesh=mesh_of(other_replicate, other_shard))
blocks.append(other)
root = fully_shard(torch.nn.Sequential(*blocks), mesh=mesh)
root.set_separate_reduce_scatter_group(True)
groups = dist.distributed_c10d._world.pg_map
print(json.dumps([len(dist.get_process_group_ranks(group)) for group in groups]))
"""


def request(num_nodes=8, reserve=Reserve(), profile=None, limit=None):
    group = NodeGroup(num_nodes=num_nodes, devices_per_node=8, device="H100-80G", intra_node="nvlink4")
    cluster = ClusterDescription(name="c", node_groups=(group,), inter_node="ib-ndr-400", reserve=reserve)
    base = tiny_request(cluster=cluster, profile=profile or Profile())
    return base.model_copy(update={"limits": Limits(memory_bytes=limit)})


def budget(mesh, **fields):
    return CostModel.of(request(**fields), mesh).budget


@pytest.mark.parametrize(
    ("replicate", "shard", "sizes"),
    [(1, 64, (64,)), (8, 8, (64, 8, 8)), (64, 1, (64, 64)), (32, 2, (64, 2, 32)), (1, 1, (1,))],
)
def test_communicators_of_a_mesh(replicate, shard, sizes):
    assert communicator_sizes(MeshPlan(replicate=replicate, shard=shard)) == sizes


def test_a_one_dimensional_mesh_by_hand():
    result = budget(MeshPlan(shard=64))
    assert result.device_bytes == 80_000_000_000
    assert result.context_bytes == 558_345_748
    assert (result.num_communicators, result.communicators_bytes) == (1, 690_000_000)
    assert result.fragmentation_bytes == 3_200_000_000
    assert result.budget_bytes == 80_000_000_000 - 558_345_748 - 690_000_000 - 3_200_000_000


def test_a_hybrid_mesh_pays_for_its_groups():
    assert budget(MeshPlan(replicate=8, shard=8)).communicators_bytes == 3 * 690_000_000
    pairs = budget(MeshPlan(replicate=32, shard=2))
    assert (pairs.num_communicators, pairs.communicators_bytes) == (3, 2 * 690_000_000 + 550_000_000)


def test_one_rank_needs_no_communicator():
    assert budget(MeshPlan(shard=1)).communicators_bytes == 0


def test_sizes_of_communicators_decide_their_reserve():
    assert communicator_bytes(request(), 4) == 690_000_000
    assert communicator_bytes(request(), 2) == 550_000_000


def test_every_unit_that_is_resharded_in_part_has_its_own_group():
    mesh = MeshPlan(replicate=8, shard=8)
    demands = Demands(partial_reshards=(4, 4, 2))
    assert communicator_sizes(mesh, demands) == (64, 8, 8, 4, 4, 2)
    result = CostModel.of(request(), mesh, demands).budget
    assert (result.num_communicators, result.communicators_bytes) == (6, 5 * 690_000_000 + 550_000_000)


def test_a_separate_reduce_scatter_group_is_one_more():
    demands = Demands(separate_reduce_scatter_group=True)
    assert communicator_sizes(MeshPlan(shard=64), demands) == (64, 64)
    assert communicator_sizes(MeshPlan(replicate=8, shard=8), demands) == (64, 8, 8, 8)
    assert communicator_sizes(MeshPlan(shard=1), demands) == (1,)


def test_demands_of_a_plan():
    job = tiny_request(cluster=tiny_cluster(8))
    runtime = RuntimeKnobs(separate_reduce_scatter_group=True)
    decisions = tiny_decisions(job, reshard=4, keep=["layers.1"], runtime=runtime)
    assert Demands.of(decisions) == Demands(partial_reshards=(4,), separate_reduce_scatter_group=True)
    assert Demands.of(tiny_decisions(job, reshard=1)) == Demands.of(tiny_decisions(job, reshard=8)) == Demands()
    on_host = tiny_decisions(job, extra_units=[UnitPlan(modules=("embed",), parameter_tier=StateTier.HOST)])
    assert Demands.of(on_host) == Demands(offloads=True)
    cost = CostModel.of_plan(job, decisions)
    assert cost.budget.num_communicators == 3


@pytest.mark.parametrize(
    ("mesh", "other"),
    [((1, 8), (1, 8)), ((2, 4), (2, 4)), ((2, 4), (1, 8)), ((1, 8), (4, 2)), ((2, 4), (4, 2))],
)
def test_fsdp2_makes_as_many_process_groups(mesh, other):
    run = subprocess.run(
        [sys.executable, "-c", PROCESS_GROUPS, *map(str, (*mesh, *other))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    made = json.loads(run.stdout.splitlines()[-1])
    planned, further = (MeshPlan(replicate=one[0], shard=one[1]) for one in (mesh, other))
    demands = Demands(
        meshes=(further,) if further != planned else (),
        partial_reshards=(2, 2, 2),
        separate_reduce_scatter_group=True,
    )
    sizes = communicator_sizes(planned, demands)
    # Each partial reshard also makes a group over the other axis of its mesh, which nothing communicates over.
    silent = (planned.num_ranks // 2,) * 3
    assert sorted(made) == sorted((*sizes, *silent))


def test_the_clusters_reserve_overrides_the_data_sheet():
    reserve = Reserve(
        context_bytes=1, communicator_bytes=2, pair_communicator_bytes=3, fragmentation=0.5, other_bytes=4
    )
    result = budget(MeshPlan(shard=64), reserve=reserve)
    assert result.budget_bytes == 80_000_000_000 - 1 - 2 - 40_000_000_000 - 4


def test_measured_reserves_override_both():
    profile = Profile(context_bytes=10, communicator_bytes=20)
    cost = CostModel.of(request(reserve=Reserve(context_bytes=1), profile=profile), MeshPlan(replicate=32, shard=2))
    assert (cost.budget.context_bytes, cost.budget.communicators_bytes) == (10, 60)
    sources = {number.name: number.source for number in cost.sources()}
    assert sources["context"] is sources["communicators"] is NumberSource.MEASURED
    assert sources["fragmentation"] is NumberSource.ASSUMED


def test_a_limit_replaces_the_result_only():
    result = budget(MeshPlan(shard=64), limit=123)
    assert result.budget_bytes == 123
    assert result.communicators_bytes == 690_000_000


def test_reserves_larger_than_the_device_leave_nothing():
    assert budget(MeshPlan(shard=64), reserve=Reserve(other_bytes=10**12)).budget_bytes == 0


@given(
    fractions=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    other=st.integers(0, 10**11),
    shard=st.sampled_from([8, 64]),
)
def test_more_reserve_never_leaves_more(fractions, other, shard):
    small, large = sorted(fractions)
    mesh = MeshPlan(shard=shard)
    lean = budget(mesh, reserve=Reserve(fragmentation=small))
    heavy = budget(mesh, reserve=Reserve(fragmentation=large, other_bytes=other))
    assert 0 <= heavy.budget_bytes <= lean.budget_bytes <= lean.device_bytes
