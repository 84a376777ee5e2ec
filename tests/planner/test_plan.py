"""`make_plan` on small requests: optimal by brute force, repeatable, monotone in memory, honest if nothing fits."""

from itertools import product

import pytest

from planner.check import check
from planner.found import Progress
from planner.plan import make_plan
from planner.schema import (
    ClientFeature,
    FixedChoice,
    InconsistentRequest,
    Limits,
    Objective,
    OptimizerGroup,
    OptimizerName,
    Plan,
    PlanRequest,
    SearchLimits,
    UnsupportedField,
)
from planner.simulate import predict
from planner.space.regions import regions
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_request
from tests.planner.random_requests import random_request

EXACT = SearchLimits(gap=0.0, deterministic_time=200.0)
BLOCK = CallSpec(
    shapes=((64, 16), (16,)),
    saved=4000,
    forward_live=(1000, 5000),
    backward_live=((5000, 0), (6000, 1), (3000, 2)),
    full_saved=500,
    full_backward_live=((6000, 0), (7000, 1), (1000, 2)),
)


FEATURES = (
    (ClientFeature.CHECKPOINT_FULL, ClientFeature.HYBRID_MESH),
    (ClientFeature.CHECKPOINT_FULL, ClientFeature.PREFETCH),
    (ClientFeature.CHECKPOINT_FULL, ClientFeature.GROUPED_UNITS),
    (ClientFeature.CHECKPOINT_FULL, ClientFeature.REDUCE_SCATTER_BUFFERS),
    (ClientFeature.CHECKPOINT_FULL, ClientFeature.ACCUMULATION),
    (ClientFeature.HYBRID_MESH, ClientFeature.RESHARD_INTEGER, ClientFeature.ACCUMULATION),
    (ClientFeature.PREFETCH, ClientFeature.REDUCE_SCATTER_BUFFERS),
)
"""Few knobs at a time, so that all plans can be predicted."""


def everything(request: PlanRequest) -> list[tuple[int, int]]:
    """(step time, reserved bytes) of every plan in the searched space, by the simulator."""
    results = []
    opened = [(region, region.open(setting)) for region in regions(request) for setting in region.settings]
    for region, item in opened:
        for assignment in product(*(range(size) for size in item.problem.num_values)):
            predicted = predict(request, item.unpack(request, assignment))
            results.append((predicted.step_time_ns, predicted.peak.reserved_bytes))
            assert region.floor_ns is None or region.floor_ns <= predicted.step_time_ns
            assert region.floor_bytes() <= predicted.peak.reserved_bytes
    return results


@pytest.mark.parametrize("seed", range(16))
def test_plan_is_optimal_by_brute_force(seed: int) -> None:
    request = random_request(seed, num_blocks=1 + seed % 2, num_devices=2 if seed % 3 else 4)
    request = request.model_copy(
        update={
            "search": EXACT,
            "client_features": FEATURES[seed % len(FEATURES)],
            "micro_batches": (2,) if seed % 4 == 1 else (),
        }
    )
    outcomes = everything(request)
    peaks = sorted({peak for _, peak in outcomes})
    for budget in {peaks[0] - 1, peaks[0], peaks[len(peaks) // 3]}:
        limited = request.model_copy(update={"limits": Limits(memory_bytes=budget)})
        body = make_plan(limited).body
        times = [time for time, peak in outcomes if peak <= budget]
        if not times:
            assert body.outcome == "infeasible"
            assert body.infeasibility is not None
            assert body.infeasibility.needed_bytes == peaks[0]
            continue
        assert body.predictions is not None
        assert body.certificate is not None
        assert body.predictions.step_time_ns == min(times)
        assert body.certificate.lower_bound == min(times)
        assert body.certificate.status == "optimal"
        assert body.certificate.checker == "passed"


@pytest.mark.parametrize("seed", range(14))
def test_least_memory_within_a_step_time_by_brute_force(seed: int) -> None:
    request = random_request(100 + seed, num_blocks=1 + seed % 2, num_devices=2 if seed % 3 else 4)
    request = request.model_copy(
        update={
            "search": EXACT,
            "client_features": FEATURES[seed % len(FEATURES)],
            "objective": Objective.PEAK_MEMORY,
        }
    )
    outcomes = everything(request)
    times = sorted({time for time, _ in outcomes})
    for limit_ns in {times[0] - 1, times[0], times[len(times) // 2]}:
        limited = request.model_copy(update={"limits": Limits(step_time_ns=limit_ns, memory_bytes=2**40)})
        body = make_plan(limited).body
        if limit_ns < times[0]:
            assert body.infeasibility is not None
            assert body.infeasibility.binding == "step_time"
            continue
        assert body.predictions is not None
        assert body.certificate is not None
        assert body.predictions.step_time_ns <= limit_ns
        assert body.predictions.peak.reserved_bytes == min(peak for time, peak in outcomes if time <= limit_ns)
        assert body.certificate.objective == "peak_memory_bytes"
        assert body.certificate.lower_bound == body.certificate.value


def test_the_same_request_gives_the_same_bytes() -> None:
    request = tiny_request(tiny_model(6, block=BLOCK), tiny_cluster(4))
    limited = request.model_copy(update={"limits": Limits(memory_bytes=90_000)})
    first, second = make_plan(limited), make_plan(limited)
    assert first.body.canonical_bytes() == second.body.canonical_bytes()
    assert first.envelope.plan_id == second.envelope.plan_id
    assert first.verify()


def test_more_memory_is_never_slower() -> None:
    request = tiny_request(tiny_model(5, block=BLOCK), tiny_cluster(4)).model_copy(update={"search": EXACT})
    budgets = range(50_000, 110_000, 6_000)
    times: list[int] = []
    for budget in budgets:
        body = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=budget)})).body
        if body.predictions is None:
            assert not times, "a larger budget became infeasible"
            continue
        assert body.predictions.peak.reserved_bytes <= budget
        times.append(body.predictions.step_time_ns)
    assert len(times) > 4
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_infeasible_names_the_smallest_device_that_would_do() -> None:
    request = tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(2))
    needed = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=10)})).body.infeasibility
    assert needed is not None
    assert needed.needed_bytes is not None
    enough = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=needed.needed_bytes)}))
    assert enough.body.outcome == "feasible"
    almost = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=needed.needed_bytes - 1)}))
    assert almost.body.outcome == "infeasible"


def test_infeasible_names_the_fewest_ranks() -> None:
    block = CallSpec(shapes=((4096, 16),), saved=10, full_saved=10)
    request = tiny_request(tiny_model(3, block=block), tiny_cluster(2))
    limited = request.model_copy(update={"limits": Limits(memory_bytes=1_900_000)})
    infeasibility = make_plan(limited).body.infeasibility
    assert infeasibility is not None
    assert infeasibility.fewest_ranks is not None
    assert infeasibility.fewest_ranks > 2
    assert infeasibility.advice


def test_infeasible_names_the_fixed_choices_that_are_in_the_way() -> None:
    request = tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(4))
    least = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=10)})).body.infeasibility
    assert least is not None
    assert least.needed_bytes is not None
    assert least.choices_to_drop == ()
    fixed = (
        FixedChoice(knob="forward_prefetch", value=0),
        FixedChoice(knob="*.activation", value="none"),
        FixedChoice(knob="mesh.replicate", value=1),
    )
    tight = request.model_copy(update={"limits": Limits(memory_bytes=least.needed_bytes), "fixed": fixed})
    infeasibility = make_plan(tight).body.infeasibility
    assert infeasibility is not None
    assert infeasibility.choices_to_drop == (fixed[1],)
    assert any("without *.activation = 'none' there is a plan" in line for line in infeasibility.advice)
    open_again = tight.model_copy(update={"fixed": (fixed[0], fixed[2])})
    assert make_plan(open_again).body.outcome == "feasible"


def test_infeasible_names_the_features_that_the_client_lacks() -> None:
    request = tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(4))
    request = request.model_copy(update={"client_features": (ClientFeature.PREFETCH,)})
    least = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=10)})).body.infeasibility
    assert least is not None
    assert least.needed_bytes is not None
    assert least.features_to_add == ()
    tight = request.model_copy(update={"limits": Limits(memory_bytes=least.needed_bytes - 1)})
    infeasibility = make_plan(tight).body.infeasibility
    assert infeasibility is not None
    (feature,) = infeasibility.features_to_add
    assert feature in (ClientFeature.CHECKPOINT_FULL, ClientFeature.CHECKPOINT_SELECTIVE)
    assert any(feature.value in line for line in infeasibility.advice)
    more = tight.model_copy(update={"client_features": (ClientFeature.PREFETCH, feature)})
    assert make_plan(more).body.outcome == "feasible"


def test_a_step_that_is_too_slow_names_what_would_help_as_well() -> None:
    request = tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(4)).model_copy(update={"search": EXACT})
    fastest = make_plan(request).body.predictions
    assert fastest is not None
    fixed = (FixedChoice(knob="*.activation", value="full"), FixedChoice(knob="mesh.replicate", value=1))
    limits = Limits(step_time_ns=fastest.step_time_ns)
    infeasibility = make_plan(request.model_copy(update={"fixed": fixed, "limits": limits})).body.infeasibility
    assert infeasibility is not None
    assert infeasibility.binding == "step_time"
    assert fixed[0] in infeasibility.choices_to_drop


def test_a_batch_that_cannot_be_split_is_infeasible_with_advice() -> None:
    request = tiny_request(tiny_model(2), tiny_cluster(4))
    workload = request.workload.model_copy(update={"global_batch": 6})
    infeasibility = make_plan(request.model_copy(update={"workload": workload})).body.infeasibility
    assert infeasibility is not None
    assert infeasibility.binding == "batch"
    assert "4 or 8" in infeasibility.advice[0]


def test_progress_ends_at_the_plan() -> None:
    seen: list[Progress] = []
    plan = make_plan(tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(4)), on_progress=seen.append)
    assert plan.body.predictions is not None
    assert seen
    incumbents = [progress.incumbent_ns for progress in seen if progress.incumbent_ns is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert all(
        progress.bound_ns is None or progress.incumbent_ns is None or progress.bound_ns <= progress.incumbent_ns
        for progress in seen
    )


def test_only_the_client_s_features_are_used() -> None:
    request = tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(4)).model_copy(
        update={"client_features": (ClientFeature.CHECKPOINT_FULL,), "limits": Limits(memory_bytes=75_000)}
    )
    body = make_plan(request).body
    assert body.decisions is not None
    assert set(body.requires.client_features) <= {ClientFeature.CHECKPOINT_FULL}
    assert body.decisions.mesh.replicate == 1
    assert all(len(unit.modules) == 1 and not unit.forward_prefetch for unit in body.decisions.units)


def test_fixed_choices_are_kept() -> None:
    fixed = (
        FixedChoice(knob="layers.*.activation", value="full"),
        FixedChoice(knob="layers.1.reshard_after_forward", value=False),
        FixedChoice(knob="mesh.shard", value=2),
        FixedChoice(knob="units.embedding", value=True),
    )
    request = tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(4)).model_copy(update={"fixed": fixed})
    body = make_plan(request).body
    assert body.decisions is not None
    assert [entry.module for entry in body.decisions.activations] == ["layers.0", "layers.1", "layers.2"]
    units = {unit.modules[0]: unit for unit in body.decisions.units}
    assert units["layers.1"].reshard_after_forward is False
    assert body.decisions.mesh.shard == 2
    assert "embed" in units
    assert check(request, body).passed


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        ("layers.*.colour", True, "matches no knob"),
        ("mesh.shard", 3, "no mesh and grouping is left"),
        ("layers.0.activation", "half", "is not possible"),
    ],
)
def test_impossible_fixed_choices_are_refused(knob: str, value: bool | int | str, message: str) -> None:
    request = tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(4)).model_copy(
        update={"fixed": (FixedChoice(knob=knob, value=value),)}
    )
    with pytest.raises(InconsistentRequest, match=message):
        make_plan(request)


@pytest.mark.parametrize(
    ("path", "update"),
    [
        ("workload.compile", {"compile": True}),
        ("workload.torch_version", {"torch_version": "2.4"}),
        *(
            (f"workload.optimizer_groups[1].{field}", {"optimizer_groups": (OptimizerGroup(), refused)})
            for field, refused in (
                ("optimizer", OptimizerGroup(optimizer=OptimizerName.ADAFACTOR)),
                ("implementation", OptimizerGroup(optimizer=OptimizerName.SGD, implementation="fused")),
                ("implementation", OptimizerGroup(optimizer=OptimizerName.SGD_MOMENTUM, implementation="fused")),
            )
        ),
    ],
)
def test_declared_but_unsupported_fields_are_refused(path: str, update: dict[str, object]) -> None:
    request = tiny_request(tiny_model(2), tiny_cluster(2))
    workload = request.workload.model_copy(update=update)
    with pytest.raises(UnsupportedField) as error:
        make_plan(request.model_copy(update={"workload": workload}))
    assert error.value.path == path


def test_provisional_plans_are_checked_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.plan.FIRST_PROVISIONAL_S", 0.0)
    given: list[Plan] = []
    request = tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(4))
    plan = make_plan(request, on_provisional=given.append)
    assert plan.body == make_plan(request).body
    assert given
    certificates = [one.body.certificate for one in given]
    assert all(one.verify() and one.body.inputs == plan.body.inputs for one in given)
    assert {certificate.checker for certificate in certificates} == {"passed"}
    assert {certificate.status for certificate in certificates} == {"provisional"}
    values = [certificate.value for certificate in certificates]
    assert values == sorted(values, reverse=True)
    assert all(certificate.lower_bound <= plan.body.certificate.value for certificate in certificates)
    assert all(not check(request, one.body).problems for one in given)
