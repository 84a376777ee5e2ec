"""Units with a mesh of their own: sizes, counts, links, refusals, and where the search chooses them."""

from typing import Any

import pytest

from benchmarks.search_requests import random_request
from planner.check import check, recompute
from planner.costs import CostModel
from planner.explain import diff
from planner.plan import make_plan
from planner.program.inputs import knobs_of, partition_of
from planner.program.units import partition
from planner.schema import (
    ClientFeature,
    Decisions,
    FixedChoice,
    InconsistentRequest,
    Limits,
    MeshPlan,
    OptimizerName,
    PlanRequest,
    Profile,
    UnitPlan,
    UnsupportedField,
)
from planner.simulate import predict
from planner.space.candidate import candidates
from planner.space.meshes import large_units
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

PAIRS = MeshPlan(replicate=2, shard=2)
ALL = MeshPlan(shard=4)
ON_DEVICE = tuple(feature for feature in ClientFeature if "offload" not in feature and "nvme" not in feature)


def request(**fields: Any) -> PlanRequest:
    return tiny_request(tiny_model(2, block=CallSpec(shapes=((16, 4),), saved=100)), tiny_cluster(4), **fields)


def decided(asked: PlanRequest, mesh: MeshPlan | None, *, which: int = 1, **fields: Any) -> Decisions:
    """Two replicas of two shards, one unit apart."""
    decisions = tiny_decisions(asked, replicate=2, **fields)
    units = list(decisions.units)
    units[which] = units[which].model_copy(update={"mesh": mesh})
    return decisions.model_copy(update={"units": tuple(units)})


def test_a_unit_is_sharded_and_reduced_over_its_own_mesh() -> None:
    asked = request()
    alike, apart = (predict(asked, decided(asked, mesh)) for mesh in (None, ALL))
    # 64 elements of four bytes, in quarters instead of halves: shard, gradient, two moments, the optimizer's copy.
    assert alike.peak.optimizer_step_bytes - apart.peak.optimizer_step_bytes == 5 * 64
    assert (alike.num_all_reduces, apart.num_all_reduces) == (3, 2)
    assert alike.num_reduce_scatters == apart.num_reduce_scatters == 3


def test_a_unit_of_one_shard_gathers_nothing() -> None:
    asked = request()
    alike, apart = (predict(asked, decided(asked, mesh)) for mesh in (None, MeshPlan(replicate=4, shard=1)))
    assert alike.num_all_gathers - apart.num_all_gathers == 2
    assert alike.num_reduce_scatters - apart.num_reduce_scatters == 1


def test_the_link_is_shared_once_some_shards_and_some_replicas_cross_nodes() -> None:
    """Neither mesh alone shares it: one replicates between nodes, the other shards over them."""
    asked = tiny_request(request().model, tiny_cluster(4, devices_per_node=2), profile=Profile())
    plans = (decided(asked, mesh) for mesh in (None, ALL))
    assert [CostModel.of_plan(asked, plan).all_reduce_shares_link for plan in plans] == [False, True]


def test_the_sources_name_the_other_mesh() -> None:
    asked = tiny_request(request().model, tiny_cluster(4), profile=Profile())
    plain, more = (
        {number.name for number in CostModel.of_plan(asked, decided(asked, mesh)).sources()} for mesh in (None, ALL)
    )
    assert {name for name in more - plain if "all_gather" in name} == {
        "all_gather of mesh 1 x 4 over link: rate",
        "all_gather of mesh 1 x 4 over link: latency",
    }


@pytest.mark.parametrize(
    ("mesh", "which", "match", "checked"),
    [
        (PAIRS, 1, "leave it out", "is that of the plan; leave it out"),
        (MeshPlan(shard=2), 1, "has 2 ranks, but decisions.mesh has 4", "covers 2 ranks, and the plan's mesh 4"),
        (ALL, 2, "the root is on the mesh of the plan", "of the root is the plan's own"),
    ],
)
def test_meshes_that_cannot_be(mesh: MeshPlan, which: int, match: str, checked: str) -> None:
    asked = request()
    decisions = decided(asked, mesh, which=which)
    with pytest.raises(InconsistentRequest, match=match):
        knobs_of(decisions, partition_of(asked.model, decisions))
    with pytest.raises(InconsistentRequest, match=checked):
        recompute(asked, decisions)


def test_a_client_must_know_of_them() -> None:
    found = random_request(9116).model_copy(update={"client_features": ON_DEVICE})
    body = make_plan(found.model_copy(update={"limits": Limits(memory_bytes=3281)})).body
    features = tuple(feature for feature in ON_DEVICE if feature is not ClientFeature.UNIT_MESH)
    report = check(found.model_copy(update={"client_features": features}), body)
    assert "the plan uses unit_mesh, which the request's client_features do not allow" in report.problems


def test_partial_resharding_divides_the_units_own_degree() -> None:
    asked = request()
    fits = decided(asked, ALL)
    halves = fits.units[1].model_copy(update={"reshard_after_forward": 2})
    sound = fits.model_copy(update={"units": (fits.units[0], halves, fits.units[2])})
    assert predict(asked, sound).step_time_ns == recompute(asked, sound).step_time_ns
    with pytest.raises(InconsistentRequest, match="2 must be written as true"):
        recompute(
            asked,
            sound.model_copy(
                update={"mesh": ALL, "units": (*_on(PAIRS, sound.units[:2]), UnitPlan(modules=("",)))}
            ),
        )


def _on(mesh: MeshPlan, units: tuple[UnitPlan, ...]) -> tuple[UnitPlan, ...]:
    return tuple(unit.model_copy(update={"mesh": mesh}) for unit in units)


def test_muon_steps_over_one_mesh() -> None:
    asked = tiny_request(request().model, tiny_cluster(4), optimizer=OptimizerName.MUON)
    muon = asked.workload.optimizer_groups[0].model_copy(update={"parameters": "layers.*"})
    rest = muon.model_copy(update={"parameters": "*", "optimizer": OptimizerName.ADAMW})
    workload = asked.workload.model_copy(update={"optimizer_groups": (muon, rest)})
    asked = asked.model_copy(update={"workload": workload})
    with pytest.raises(UnsupportedField, match=r"units\[\.\.\]\.mesh"):
        predict(asked, decided(asked, ALL))
    with pytest.raises(InconsistentRequest, match="not modelled with Muon"):
        recompute(asked, decided(asked, ALL))


def test_a_difference_in_meshes_is_told() -> None:
    asked = random_request(9116).model_copy(update={"client_features": ON_DEVICE})
    body = make_plan(asked.model_copy(update={"limits": Limits(memory_bytes=3281)})).body
    assert body.decisions is not None
    plain = body.model_copy(
        update={
            "decisions": body.decisions.model_copy(
                update={"units": tuple(unit.model_copy(update={"mesh": None}) for unit in body.decisions.units)}
            )
        }
    )
    said = [item.words for item in diff(plain, body) if item.path.endswith(".mesh")]
    assert said
    assert all(words.endswith("mesh that of the plan -> 1 x 2") for words in said)


# Search


def test_large_units_have_four_times_the_parameters_of_all_others() -> None:
    def large(block: int, embedding: int) -> list[str]:
        model = tiny_model(
            2,
            block=CallSpec(shapes=((block, 4),)),
            embedding=CallSpec(shapes=((embedding, 4),), input_requires_grad=False),
        )
        parts = partition(model, [("embed",), ("layers.0",), ("layers.1",)])
        return [parts.units[unit].name for unit in sorted(large_units(parts))]

    assert large(16, 64) == ["embed"]
    assert large(64, 16) == ["layers.0", "layers.1"]
    assert large(16, 63) == []
    assert large(16, 16) == []


def test_a_mesh_for_large_units_is_chosen_where_it_pays() -> None:
    asked = random_request(9116).model_copy(update={"limits": Limits(memory_bytes=3281)})
    without = tuple(feature for feature in ON_DEVICE if feature is not ClientFeature.UNIT_MESH)
    one, two = (make_plan(asked.model_copy(update={"client_features": used})).body for used in (without, ON_DEVICE))
    assert one.predictions is not None
    assert two.predictions is not None
    assert two.decisions is not None
    assert two.predictions.step_time_ns < one.predictions.step_time_ns
    assert two.decisions.meshes == (MeshPlan(replicate=2, shard=1), MeshPlan(shard=2))
    assert ClientFeature.UNIT_MESH in two.requires.client_features
    assert two.certificate is not None
    assert (two.certificate.status, two.certificate.checker) == ("optimal", "passed")


@pytest.mark.parametrize(("shard", "meshes"), [(1, {1}), (2, {1, 2})])
def test_the_mesh_of_large_units_can_be_fixed(shard: int, meshes: set[int]) -> None:
    fixed = (FixedChoice(knob="mesh.shard", value=1), FixedChoice(knob="mesh.large_units.shard", value=shard))
    asked = random_request(9116).model_copy(update={"client_features": ON_DEVICE, "fixed": fixed})
    found = list(candidates(asked, on_host=False))
    assert found
    assert {mesh.shard for one in found for mesh in one.meshes} == meshes


def test_units_on_one_node_are_on_one_mesh() -> None:
    asked = random_request(9116).model_copy(update={"client_features": ON_DEVICE})
    (group,) = asked.cluster.node_groups
    whole = group.model_copy(update={"num_nodes": 1, "devices_per_node": 2})
    cluster = asked.cluster.model_copy(update={"node_groups": (whole,)})
    found = candidates(asked.model_copy(update={"cluster": cluster}), on_host=False)
    assert not any(one.large_mesh for one in found)
