from pathlib import Path

import pytest

from planner.costs import CostModel
from planner.schema import ClusterDescription, MeshPlan, Profile
from tests.planner.factories import tiny_request

EXAMPLES = Path(__file__).parents[3] / "examples" / "clusters"
SIZES = [
    ("h100-8", 1, 8),
    ("h100-64", 8, 64),
    ("rtx4090-4", 1, 4),
    ("a100-16", 2, 16),
    ("gloo-2", 1, 2),
    ("gloo-4", 1, 4),
]


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_devices"),
    SIZES,
)
def test_example_clusters_can_be_planned_for(name, num_nodes, num_devices):
    text = (EXAMPLES / f"{name}.json").read_text()
    cluster = ClusterDescription.from_json(text, source=name)
    assert (cluster.name, cluster.num_nodes, cluster.num_devices) == (name, num_nodes, num_devices)
    assert cluster.to_json() == text
    assert all(group.host_memory_bytes and group.host_cores for group in cluster.node_groups)
    cost = CostModel.of(tiny_request(cluster=cluster, profile=Profile()), MeshPlan(shard=num_devices))
    assert cost.budget.budget_bytes > 0.9 * cost.budget.device_bytes
    assert cost.own.all_gather_ns(2**20) > 0


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.json")} == {name for name, _, _ in SIZES}
