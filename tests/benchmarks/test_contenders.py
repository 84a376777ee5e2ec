"""Contenders: what is counted, what fits, and which configurations their rules choose."""

from dataclasses import replace
from itertools import product

import pytest

from benchmarks import example_plans
from benchmarks.contenders import (
    Outcome,
    beaten_by,
    block_by_block,
    by_hand,
    deepcompile,
    fastest,
    full,
    gained,
    grid,
    nearest_activations,
    outcome,
    protrain,
    within,
)
from planner.plan import make_plan
from planner.schema import ActivationPlan, ActivationPolicy, Limits, PlanRequest
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_profile, tiny_request

GRIDS = {"llama-3-8b": 100, "gpt-2": 60}
"""Tied parameters leave embedding and head in the root, so that two of five ways to gather repeat others."""
BLOCK = CallSpec(shapes=((8, 4),), saved=900, full_saved=100)


@pytest.fixture
def request_of_four_blocks() -> PlanRequest:
    """Collectives of 300 ns and more, so that staying gathered pays."""
    profile = tiny_profile(collective_latency_ns=300)
    return tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(2), profile=profile)


def test_one_block_of_so_many_is_checkpointed() -> None:
    blocks = ("a", "b", "c", "d", "e")
    chosen = {every: [plan.module for plan in full(blocks, every)] for every in (0, 1, 2, 4)}
    assert chosen == {0: [], 1: list(blocks), 2: ["b", "d"], 4: ["d"]}


@pytest.mark.parametrize("model", GRIDS)
def test_points_of_the_sweep_differ(model: str) -> None:
    points = grid(example_plans.request_for(model, "h100-64"))
    assert len(points) == len(set(points.values())) == GRIDS[model]
    assert {decisions.mesh.shard for decisions in points.values()} == {64, 8}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_protrain_finds_the_best_of_its_counts(request_of_four_blocks: PlanRequest, share: float) -> None:
    request = request_of_four_blocks
    request = within(request, share, by_hand(request, activation="all"), by_hand(request, reshard=False))
    blocks = tuple(f"layers.{index}" for index in range(4))
    everything = [
        outcome(request, "", block_by_block(request, kept=kept, checkpointed=blocks[:count], prefetch=prefetch))
        for prefetch, count in product((0, 2), range(5))
        for kept in (blocks[4 - number :] for number in range(5))
    ]
    best, num_predictions = protrain(request)
    expected = fastest(everything)
    assert best is not None
    assert expected is not None
    assert best.step_time_ns == expected.step_time_ns
    assert num_predictions <= len(everything)


def test_deepcompile_keeps_blocks_while_they_fit(request_of_four_blocks: PlanRequest) -> None:
    request = request_of_four_blocks
    known = [
        outcome(request, "", block_by_block(request, kept=[f"layers.{n}" for n in range(number)]))
        for number in range(5)
    ]
    peaks = [one.peak_bytes for one in known]
    assert peaks == sorted(peaks)
    for number, words in ((4, "4 kept"), (2, "3 kept"), (0, "1 kept")):  # keeping the last block is free
        limited = request.model_copy(update={"limits": Limits(memory_bytes=peaks[number])})
        best, num_predictions = deepcompile(limited, checkpointed=False)
        assert best is not None
        assert best.name == words
        assert best.peak_bytes <= peaks[number]
        assert best.step_time_ns <= known[number].step_time_ns
        assert num_predictions == 5
    limited = request.model_copy(update={"limits": Limits(memory_bytes=peaks[0] - 1)})
    assert deepcompile(limited, checkpointed=False) == (None, 1)


def test_kept_bytes_are_rounded_to_a_set_that_was_traced() -> None:
    request = example_plans.request_for("llama-3-8b", "h100-64")
    workload, path = request.workload, "model.layers.3"
    kind = next(request.model.kinds[call.kind] for call in request.model.calls if call.path == path)

    def made(option: int) -> int:
        tensors = kind.selective[option].liveness.saved
        size = (workload.micro_batch, workload.sequence)
        return sum(tensor.size_bytes.at(*size) for tensor in tensors if not tensor.from_input)

    smaller, larger = sorted(range(len(kind.selective)), key=made)[:2]
    for lean in (True, False):
        (exact,) = nearest_activations(request, {path: made(larger)}, lean=lean)
        assert exact.saved_ops == kind.selective[larger].saved_ops
        (between,) = nearest_activations(request, {path: made(larger) - 1}, lean=lean)
        assert between.saved_ops == kind.selective[smaller if lean else larger].saved_ops
    (nothing,) = nearest_activations(request, {path: 0}, lean=True)
    assert nothing == ActivationPlan(module=path, policy=ActivationPolicy.FULL, saved_ops=())
    assert nearest_activations(request, {path: 2**40}, lean=True) == ()


def test_a_contender_beats_a_plan_below_its_bound_alone(request_of_four_blocks: PlanRequest) -> None:
    request = request_of_four_blocks
    body = make_plan(request).body
    assert body.certificate is not None
    assert body.predictions is not None
    known = outcome(request, "by hand", by_hand(request))
    assert beaten_by(body, [known]) is None
    bound = body.certificate.lower_bound
    assert beaten_by(body, [replace(known, step_time_ns=bound)]) is None
    better = replace(known, step_time_ns=bound - 1)
    assert "by hand" in (beaten_by(body, [better]) or "")
    assert beaten_by(body, [better], limit_bytes=better.peak_bytes - 1) is None
    assert beaten_by(body, [replace(better, fits_host=False)]) is None


def test_a_contender_that_fits_where_no_plan_does_is_told(request_of_four_blocks: PlanRequest) -> None:
    request = request_of_four_blocks
    nothing = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=1)})).body
    known = outcome(request, "by hand", by_hand(request))
    assert beaten_by(nothing, [known]) == "no plan, but by hand fits"


def test_the_gain_names_the_largest_differences(request_of_four_blocks: PlanRequest) -> None:
    known: Outcome = outcome(request_of_four_blocks, "", by_hand(request_of_four_blocks))
    assert gained(known.breakdown, known.breakdown) == "the same"
    name = next(name for name in type(known.breakdown).model_fields if name != "total_ns")
    slower = known.breakdown.model_copy(update={name: getattr(known.breakdown, name) + 2_500_000})
    assert gained(known.breakdown, slower) == f"{name.removesuffix('_ns').replace('_', ' ')} -2.5 ms"
