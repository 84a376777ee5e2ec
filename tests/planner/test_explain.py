import pytest

from planner.explain import diff
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Certificate,
    Decisions,
    InputHashes,
    MemoryBudget,
    MemoryPeak,
    MeshPlan,
    PlanBody,
    Predictions,
    StepBreakdown,
    UnitPlan,
)

HASHES = [f"sha256:{digit * 64}" for digit in "0123456789"]
NAMES = [f"layers.{index}" for index in range(4)]


def make_body(*, reshard=(True,) * 4, checkpointed=(), mesh=None, step_time_ns=2_000_000, inputs=None, units=None):
    return PlanBody(
        name="tiny",
        outcome="feasible",
        model_fingerprint=HASHES[0],
        world_size=4,
        decisions=Decisions(
            mesh=mesh or MeshPlan(shard=4),
            units=units
            or (
                *(UnitPlan(modules=(name,), reshard_after_forward=reshard[i]) for i, name in enumerate(NAMES)),
                UnitPlan(modules=("",)),
            ),
            activations=tuple(ActivationPlan(module=NAMES[i], policy=ActivationPolicy.FULL) for i in checkpointed),
            micro_batch=1,
            num_micro_batches=2,
        ),
        predictions=Predictions(
            step_time_ns=step_time_ns,
            breakdown=StepBreakdown(compute_ns=step_time_ns, total_ns=step_time_ns),
            peak=MemoryPeak(reserved_bytes=2**30, allocated_bytes=2**30),
            budget=MemoryBudget(device_bytes=2**31, budget_bytes=2**31),
        ),
        certificate=Certificate(value=step_time_ns, lower_bound=step_time_ns, gap=0, status="optimal"),
        inputs=inputs or InputHashes(model=HASHES[1], cluster=HASHES[2], workload=HASHES[3], request=HASHES[4]),
        planner_version="0.1.0",
    )


def words(a, b):
    return [item.words for item in diff(a, b)]


def test_a_plan_does_not_differ_from_itself():
    assert diff(make_body(), make_body()) == ()


def test_equal_changes_of_blocks_fold():
    (item,) = diff(make_body(), make_body(reshard=(True, False, False, True)))
    assert item.path == "decisions.units[layers.1-2].reshard_after_forward"
    assert (item.before, item.after) == ("yes", "no")
    assert item.words == "layers.1-2: reshard after forward yes -> no"


def test_checkpointing_added_and_removed():
    assert words(make_body(checkpointed=(0, 1)), make_body(checkpointed=(1, 2, 3))) == [
        "layers.0: activations checkpoint -> keep",
        "layers.2-3: activations keep -> checkpoint",
    ]


def test_mesh_and_times_are_named_with_units():
    said = words(make_body(), make_body(mesh=MeshPlan(replicate=2, shard=2), step_time_ns=3_000_000))
    assert "mesh shard: 4 -> 2" in said
    assert "mesh replicate: 1 -> 2" in said
    assert "step time: 2.00 ms -> 3.00 ms" in said


def test_regrouped_units_are_gone_and_new():
    grouped = (UnitPlan(modules=("layers.0", "layers.1")), UnitPlan(modules=("layers.2", "layers.3")))
    said = words(make_body(), make_body(units=(*grouped, UnitPlan(modules=("",)))))
    assert said == ["no longer units: layers.0-3", "new units: layers.0-3 (2 per unit)"]


@pytest.mark.parametrize(
    ("before", "after", "said"), [((), (1, 2), "implicit -> 2 ahead"), ((1,), (2,), "layers.1 -> ")]
)
def test_prefetch_lists(before, after, said):
    def body(targets):
        units = [UnitPlan(modules=("layers.0",), forward_prefetch=tuple(NAMES[i] for i in targets))]
        return make_body(
            units=(*units, *(UnitPlan(modules=(name,)) for name in NAMES[1:]), UnitPlan(modules=("",)))
        )

    (item,) = diff(body(before), body(after))
    assert item.words.startswith(f"layers.0: forward prefetch {said}")


def test_other_inputs_are_named_before_everything_else():
    other = InputHashes(
        model=HASHES[1], cluster=HASHES[9], workload=HASHES[3], profile=HASHES[5], request=HASHES[6]
    )
    said = words(make_body(), make_body(inputs=other, step_time_ns=1))
    assert said[0].startswith("the cluster document differs (222222222222 to 999999999999)")
    assert said[1].startswith("the profile document differs (none to 555555555555)")


def test_feasible_against_infeasible():
    infeasible = make_body().model_copy(update={"outcome": "infeasible", "decisions": None, "predictions": None})
    said = words(make_body(), infeasible)
    assert "outcome: feasible -> infeasible" in said
    assert "decisions: present -> none" in said
