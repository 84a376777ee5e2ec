"""Decisions under a change: carried over with a note, or refused with a reason; never something else."""

from pathlib import Path

import pytest

from api.cli.by_hand import ByHand
from benchmarks.deep_models import deep_model
from planner.plan import _requirements
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    ClientFeature,
    ClusterDescription,
    Decisions,
    FixedChoice,
    GradientSync,
    InconsistentRequest,
    Layout,
    LayoutEntry,
    MatrixOwner,
    MeshPlan,
    PlanRequest,
    RuntimeKnobs,
    StateTier,
    Workload,
)
from planner.simulate import predict
from planner.what_if import Change, DecisionsDoNotFit, carried_over, changed_request

CLUSTER = Path(__file__).parents[2] / "examples" / "clusters" / "h100-64.json"


@pytest.fixture(scope="module")
def job() -> PlanRequest:
    return PlanRequest(
        model=deep_model("llama-3-8b", 4),
        cluster=ClusterDescription.from_json(CLUSTER.read_bytes()),
        workload=Workload(micro_batch=1, sequence=1024, global_batch=128),
    )


@pytest.fixture(scope="module")
def plain(job: PlanRequest) -> Decisions:
    return ByHand().decisions(job)


@pytest.fixture(scope="module")
def rich(job: PlanRequest) -> Decisions:
    """Every knob that needs neither a layout nor an owner."""
    decisions = ByHand(shard=8, prefetch=1, reduce_buffers=2).decisions(job)
    first, second, third, fourth, root = decisions.units
    pair = first.model_copy(update={"modules": (*first.modules, *second.modules)})
    on_host = {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    units = (
        pair.model_copy(update={"forward_prefetch": (), **on_host}),
        third.model_copy(update={"reshard_after_forward": 2, "forward_prefetch": fourth.modules}),
        fourth.model_copy(update={"reshard_after_backward": False, "backward_prefetch": third.modules}),
        root,
    )
    block = third.modules[0]
    return decisions.model_copy(
        update={
            "units": units,
            "activations": (ActivationPlan(module=block, policy=ActivationPolicy.FULL),),
            "runtime": RuntimeKnobs(
                reduce_scatter_max_input_buffers=2,
                separate_reduce_scatter_group=True,
                gradient_sync=GradientSync.LAST_MICRO_BATCH,
            ),
        }
    )


def moved(job: PlanRequest, decisions: Decisions, **change: object) -> tuple[Decisions, tuple[str, ...]]:
    asked = Change(**change)
    return carried_over(decisions, changed_request(job, asked), asked)


def test_no_change_changes_nothing(job: PlanRequest, plain: Decisions, rich: Decisions) -> None:
    for decisions in (plain, rich):
        assert moved(job, decisions) == (decisions, ())
    assert changed_request(job, Change()) == job


@pytest.mark.parametrize("feature", list(ClientFeature))
def test_a_forbidden_knob_is_not_used_and_the_rest_still_predicts(
    job: PlanRequest, rich: Decisions, feature: ClientFeature
) -> None:
    used = _requirements(rich, job.model).client_features
    asked = Change(forbidden=(feature,))
    request = changed_request(job, asked)
    assert request.client_features is not None
    assert feature not in request.client_features
    decisions, notes = carried_over(rich, request, asked)
    assert set(_requirements(decisions, job.model).client_features) == set(used) - {feature}
    assert bool(notes) == (feature in used)
    assert predict(request, decisions).step_time_ns > 0


def test_sizes_are_carried_over(job: PlanRequest, rich: Decisions) -> None:
    decisions, notes = moved(job, rich, micro_batch=2)
    assert (decisions.micro_batch, decisions.num_micro_batches) == (2, 1)
    assert decisions.runtime.gradient_sync is GradientSync.EVERY_MICRO_BATCH
    assert notes == ("1 micro-batches of 2 instead of 2 of 1",)
    with pytest.raises(InconsistentRequest, match="take a global batch of 192"):
        moved(job, rich, micro_batch=3)
    request = changed_request(job, Change(sequence=2048, memory_bytes=10**9, global_batch=256))
    assert (request.workload.sequence, request.workload.global_batch) == (2048, 256)
    assert request.limits.memory_bytes == 10**9


def test_ranks_are_whole_nodes_or_a_part_of_one(job: PlanRequest, plain: Decisions, rich: Decisions) -> None:
    fixed = job.model_copy(update={"fixed": (FixedChoice(knob="mesh.shard", value=64),)})
    request = changed_request(fixed, Change(num_ranks=32))
    assert (request.cluster.num_nodes, request.cluster.num_devices, request.fixed) == (4, 32, ())
    assert moved(job, plain, num_ranks=32)[0].mesh == MeshPlan(shard=32)
    assert moved(job, rich, num_ranks=32)[0].mesh == MeshPlan(replicate=4, shard=8)
    assert changed_request(job, Change(num_ranks=4)).cluster.node_groups[0].devices_per_node == 4
    with pytest.raises(InconsistentRequest, match="take 8 or 16"):
        changed_request(job, Change(num_ranks=12))
    with pytest.raises(DecisionsDoNotFit, match="shard degree 8"):
        moved(job, rich, num_ranks=4)


def test_what_is_laid_out_for_the_ranks_is_not_guessed(job: PlanRequest, plain: Decisions) -> None:
    layout = Layout(
        name="a",
        dtype="float32",
        shard_elements=8,
        entries=(LayoutEntry(parameter="p", offset_elements=0, num_elements=8),),
    )
    ragged = plain.model_copy(update={"layouts": (layout,)})
    owned = plain.model_copy(update={"owners": (MatrixOwner(parameter="p", rank=0),)})
    for decisions, change in (
        (ragged, {"num_ranks": 32}),
        (owned, {"num_ranks": 32}),
        (owned, {"forbidden": (ClientFeature.MUON_OWNERS,)}),
        (owned, {"forbidden": (ClientFeature.RAGGED_LAYOUT,)}),
    ):
        with pytest.raises(DecisionsDoNotFit, match="ask for a solve"):
            moved(job, decisions, **change)
    assert moved(job, ragged, forbidden=(ClientFeature.RAGGED_LAYOUT,))[0] == plain
