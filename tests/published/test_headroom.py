"""What of a device training tensors can have."""

import pytest

from planner.plan import make_plan
from planner.schema import MemoryCategory, PlanRequest, Reserve
from planner.simulate import predict
from tests.planner.factories import (
    CallSpec,
    ClusterSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_profile,
    tiny_request,
)
from tests.published.steps import GIB

DEVICE_BYTES = 80 * GIB
DEFAULT = Reserve(context_bytes=0)
PROFILE = tiny_profile().model_copy(update={"context_bytes": None, "communicator_bytes": None})


def with_share(percent: float, ranks: int = 8) -> PlanRequest:
    """A step whose tensors take a share of the device, nearly all of it activations."""
    block = CallSpec(shapes=((8, 4),), saved=int(DEVICE_BYTES * percent / 100 / 4), backward_live=[(0, 1)])
    model = tiny_model(4, block=block, embedding=None, norm=None, head=None, loss=None)
    cluster = tiny_cluster(ranks, spec=ClusterSpec(memory_bytes=DEVICE_BYTES, reserve=DEFAULT))
    return tiny_request(model, cluster, profile=PROFILE)


@pytest.mark.parametrize(("ranks", "communicator"), [(2, 550_000_000), (4, 690_000_000), (8, 690_000_000)])
def test_stated_reserve(ranks: int, communicator: int) -> None:
    """0.55 GB for a group of 2, 0.69 for a larger one, and a margin for fragmentation (reported case 15)."""
    request = with_share(10, ranks)
    budget = predict(request, tiny_decisions(request)).budget
    assert budget.communicators_bytes == communicator
    assert budget.fragmentation_bytes == round(DEFAULT.fragmentation * DEVICE_BYTES)
    assert budget.budget_bytes == DEVICE_BYTES - communicator - budget.fragmentation_bytes


@pytest.mark.parametrize(("percent", "fits"), [(91, True), (98.5, False)])
def test_the_default_leaves_headroom(percent: float, fits: bool) -> None:
    """At 91 % reserved the batch is taken, at a predicted 98.5 % it is not (reported case 15)."""
    body = make_plan(with_share(percent)).body
    assert (body.outcome == "feasible") is fits
    if body.infeasibility is not None:
        assert body.infeasibility.binding is MemoryCategory.ACTIVATIONS


def test_hybrid_meshes_have_a_communicator_for_each_axis() -> None:
    """Each axis of a 2-D mesh has a communicator beside the world's (docs/fsdp2.md)."""
    request = with_share(10, 8)
    flat, hybrid = (predict(request, tiny_decisions(request, replicate=replicate)).budget for replicate in (1, 2))
    assert (flat.num_communicators, hybrid.num_communicators) == (1, 3)
    assert hybrid.communicators_bytes == 690_000_000 + 690_000_000 + 550_000_000
