"""What the optimizer keeps, and what its step takes on top."""

import pytest

from planner.plan import make_plan
from planner.schema import (
    FixedChoice,
    MemoryCategory,
    OptimizerGroup,
    OptimizerName,
    PlanRequest,
    RuntimeKnobs,
)
from planner.simulate.peaks import predicted_peaks
from tests.planner.factories import FULL_PRECISION, CallSpec
from tests.published.steps import GIB, Step, block_model, step

STATE, TRANSIENT = MemoryCategory.OPTIMIZER, 6 * 10**9 * 4 // 2
NUM_BLOCKS, ELEMENTS = 30, 200_000_000


def with_group(found: Step, **fields: object) -> PlanRequest:
    group = OptimizerGroup.model_validate(fields)
    workload = found.request.workload.model_copy(update={"optimizer_groups": (group,)})
    return found.request.model_copy(update={"workload": workload})


def six_billion(memory_bytes: int = 10**15) -> Step:
    """6e9 float32 parameters over 2 ranks, with activations that take backward to 5 GiB above the state."""
    block = CallSpec(shapes=((ELEMENTS,),), saved=17 * 10**6, backward_live=[(0, 1)])
    return step(block_model(NUM_BLOCKS, block, root=None), 2, memory_bytes=memory_bytes)


def gib(size: int) -> float:
    return round(size / GIB, 3)


def test_adamw_foreach_takes_one_shard_more() -> None:
    """16 B a parameter are 44.703 GiB; foreach adds a float32 copy, 11.176: 55.879 GiB (reported case 1)."""
    found = six_billion()
    size = {
        implementation: predicted_peaks(
            found.request.model, found.decisions, with_group(found, implementation=implementation).workload
        ).optimizer.total_bytes
        for implementation in ("foreach", "fused", "for_loop")
    }
    assert gib(size["foreach"]) == 55.879
    assert size["fused"] == 6 * 10**9 // 2 * 16 + NUM_BLOCKS * 4  # step counts on the device
    assert gib(size["fused"]) == 44.703
    assert gib(size["for_loop"]) == gib(6 * 10**9 // 2 * 16 + 3 * ELEMENTS * 4 // 2)


def test_state_of_the_first_step_is_absent_from_a_profile_of_it() -> None:
    """Adam's state, 22.352 GiB, is made in the first step: the peak is that of later ones (reported case 1)."""
    found = six_billion()
    at_peak = found.peaks.micro_batch
    assert gib(at_peak.by_category_bytes[STATE]) == 22.352
    first_step = at_peak.total_bytes - at_peak.by_category_bytes[STATE]
    assert first_step < found.peaks.optimizer.total_bytes < at_peak.total_bytes + TRANSIENT


@pytest.mark.parametrize(("implementation", "fits"), [("foreach", False), ("fused", True), ("for_loop", True)])
def test_a_budget_between_them_rejects_foreach_alone(implementation: str, fits: bool) -> None:
    """52 GiB: foreach at 55.879 GiB does not fit, fused and looped with a backward of 49.7 do (reported case 1).

    The report counts allocated bytes; a plan bounds the sum of the pools' peaks, with the same verdicts here.
    """
    request = with_group(six_billion(52 * GIB), implementation=implementation)
    body = make_plan(request).body
    assert (body.outcome == "feasible") is fits
    if body.infeasibility is not None:
        assert body.infeasibility.binding is STATE


@pytest.mark.parametrize(
    ("ranks", "state_bytes"),
    [(1, 2 * (6_144 + 6_144 // 256 * 4)), (2, 3_072 * 8)],
)
def test_eight_bit_state_depends_on_the_shard(ranks: int, state_bytes: int) -> None:
    """(6, 1024): 6,144 elements are held in 8 bits, 3,072 in float32 at 8 B each (reported case 2; torchao)."""
    found = step(block_model(1, CallSpec(shapes=((6, 1024),)), root=None), ranks)
    request = with_group(found, optimizer=OptimizerName.ADAMW_8BIT)
    peak = predicted_peaks(request.model, found.decisions, request.workload).micro_batch
    assert peak.by_category_bytes[STATE] == state_bytes


def test_a_plan_says_why_eight_bit_state_is_wide() -> None:
    """The plan must compute the larger number and say why (reported case 2)."""
    found = step(block_model(1, CallSpec(shapes=((6, 1024),)), root=None), 2)
    request = with_group(found, optimizer=OptimizerName.ADAMW_8BIT)
    fixed = (FixedChoice(knob="mesh.shard", value=2),)
    notes = make_plan(request.model_copy(update={"fixed": fixed})).body.reasons.notes
    assert any("float32 moments under adamw_8bit" in note and "has 3072" in note for note in notes)


@pytest.mark.parametrize(("reduces_unused", "bytes_per_element"), [(True, 12), (False, 0)])
def test_freezing_what_is_never_used_drops_its_gradient_and_state(
    reduces_unused: bool, bytes_per_element: int
) -> None:
    """Reduced as zeros it has 4 B of gradient and 8 B of moments an element; else none (reported case 6)."""
    model = block_model(2, CallSpec(shapes=((64, 4), (64, 4))), root=None)
    kind = model.kinds["block"].model_copy(update={"gradient_order": ("w0",)})
    unused = model.model_copy(update={"kinds": {**model.kinds, "block": kind}})
    used, never = unused.parameter_sets["block"]
    frozen = unused.model_copy(
        update={"parameter_sets": {"block": (used, never.model_copy(update={"requires_grad": False}))}}
    )
    runtime = RuntimeKnobs(reduce_scatter_unused_params=reduces_unused)
    size, asked = {}, {}
    for name, one in (("unused", unused), ("frozen", frozen)):
        found = step(one, 8, precision=FULL_PRECISION, runtime=runtime)
        asked[name] = with_group(found, implementation="for_loop")
        peaks = predicted_peaks(asked[name].model, found.decisions, asked[name].workload)
        size[name] = peaks.optimizer.total_bytes
    assert size["unused"] - size["frozen"] == bytes_per_element * 2 * 64 * 4 // 8
    advice = {
        name: any("no gradient reaches" in note for note in make_plan(one).body.reasons.notes)
        for name, one in asked.items()
    }
    assert advice == {"unused": True, "frozen": False}


@pytest.mark.parametrize("ranks", [8, 32])
def test_state_recipe(ranks: int) -> None:
    """Float32 shards and gradients and Adam's moments: 16 B per trainable parameter and rank (reported cases)."""
    found = step(block_model(4, CallSpec(shapes=((64_000, 8),)), root=None), ranks, precision=FULL_PRECISION)
    per_rank = 4 * 64_000 * 8 // ranks
    assert found.peaks.optimizer.total_bytes == 16 * per_rank + 4 * per_rank  # and foreach's copy
