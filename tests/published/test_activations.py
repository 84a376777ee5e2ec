"""Activations: what checkpointing keeps, what more ranks do not cut, and how much of it to choose."""

import pytest

from planner.plan import make_plan
from planner.schema import ActivationPolicy, Infeasibility, MemoryCategory, PlanRequest
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_profile, tiny_request
from tests.published.steps import GIB, step

NUM_LAYERS, TOKENS, WIDTH = 32, 8_192, 4_096
INPUT = TOKENS * WIDTH * 2
"""Bytes of a block's input in bf16."""
ALL = 34 * TOKENS * WIDTH
"""Bytes that a block keeps: 34 for each element, with fused attention."""
LAYER = CallSpec(
    shapes=((8, 4),),
    saved=ALL,
    backward_live=[(ALL, 1)],
    full_saved=INPUT,
    full_backward_live=[(ALL, 1)],
    flops=10**9,
)


def layers() -> PlanRequest:
    """32 layers without parameters to speak of, on one rank."""
    model = tiny_model(NUM_LAYERS, block=LAYER, embedding=None, norm=None, head=None, loss=None)
    durations = {"block": (1_000_000, 2_000_000, 1_000_000)}
    return tiny_request(model, tiny_cluster(1), profile=tiny_profile(durations))


def with_room(room_bytes: int) -> PlanRequest:
    request = layers()
    parameters = 200_000  # bytes of shards, moments, gradients and gathers; far below one activation
    return request.model_copy(
        update={"limits": request.limits.model_copy(update={"memory_bytes": room_bytes + parameters})}
    )


def kept_bytes(num_checkpointed: int) -> int:
    found = step(layers().model, 1, checkpoint=[f"layers.{index}" for index in range(num_checkpointed)])
    # At the start of backward everything that forward kept is alive.
    return found.peaks.micro_batch.by_category_bytes[MemoryCategory.ACTIVATIONS]


def test_what_each_policy_keeps() -> None:
    """Full checkpointing keeps 2.000 GiB of inputs, none 34, every second layer 18 (reported case 14).

    A checkpointed layer needs its activations while it is recomputed, 1 GiB beyond its input.
    """
    assert NUM_LAYERS * INPUT == 2 * GIB
    assert NUM_LAYERS * ALL == 34 * GIB
    assert NUM_LAYERS // 2 * (ALL + INPUT) == 18 * GIB
    everything = kept_bytes(0) + transient_bytes(0)
    assert everything == 34 * GIB
    assert kept_bytes(NUM_LAYERS) + transient_bytes(NUM_LAYERS) == 2 * GIB + (ALL - INPUT)


def transient_bytes(num_checkpointed: int) -> int:
    found = step(layers().model, 1, checkpoint=[f"layers.{index}" for index in range(num_checkpointed)])
    return found.peaks.micro_batch.by_category_bytes.get(MemoryCategory.TRANSIENTS, 0)


@pytest.mark.parametrize(("room_gib", "kept"), [(20, {17, 18}), (40, {32}), (4, {1, 2})])
def test_least_recomputation(room_gib: int, kept: set[int]) -> None:
    """k layers kept take 2 + k GiB: 17 or 18 kept at 20 GiB, all at 40, at least one at 4 (reported case 14).

    Full checkpointing is a wrong answer wherever less of it fits.
    """
    decisions = make_plan(with_room(room_gib * GIB)).body.decisions
    assert decisions is not None
    assert {entry.policy for entry in decisions.activations} <= {ActivationPolicy.FULL}
    assert NUM_LAYERS - len(decisions.activations) in kept


def three_billion(ranks: int) -> PlanRequest:
    """3e9 parameters in 20 units with 1 GiB of activations each."""
    block = CallSpec(shapes=((150_000_000,),), saved=GIB, backward_live=[(GIB, 1)])
    model = tiny_model(20, block=block, embedding=None, norm=None, head=None, loss=None)
    return step(model, ranks).request


@pytest.mark.parametrize(("ranks", "total_gib"), [(8, 25.588), (32, 21.397)])
def test_more_ranks_do_not_cut_activations(ranks: int, total_gib: float) -> None:
    """3e9 parameters with 20 GiB of activations: 25.588 GiB over 8 ranks, 21.397 over 32 (reported case 13).

    The report adds states and activations. A unit's gathered parameters and gradients come on top.
    """
    found = step(three_billion(ranks).model, ranks)
    at_peak = found.peaks.micro_batch.by_category_bytes
    state = found.peaks.optimizer.by_category_bytes
    activations = at_peak[MemoryCategory.ACTIVATIONS] + at_peak.get(MemoryCategory.TRANSIENTS, 0)
    moments = at_peak[MemoryCategory.OPTIMIZER]
    gradients = state[MemoryCategory.GRADIENTS]
    counted = activations + moments + gradients + state[MemoryCategory.PARAMETERS]
    assert round(counted / GIB, 3) == total_gib


def why_not(request: PlanRequest, budget_bytes: int) -> Infeasibility:
    limits = request.limits.model_copy(update={"memory_bytes": budget_bytes})
    found = make_plan(request.model_copy(update={"limits": limits})).body.infeasibility
    assert found is not None
    return found


def test_activations_are_named_and_ranks_are_not_the_remedy() -> None:
    """The binding term is activations; advice is checkpointing or a shorter micro-batch (reported case 13)."""
    found = why_not(three_billion(32), 15 * GIB)
    assert found.binding is MemoryCategory.ACTIVATIONS
    assert found.fewest_ranks is None
    assert any("micro-batch" in text for text in found.advice)
