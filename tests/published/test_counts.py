"""Collectives of a step, counted in the predicted outline."""

import pytest

from planner.program.outline import OutlineKind
from planner.schema import Call, GradientSync, ModelDescription, RuntimeKnobs, UnitPlan
from planner.simulate import predict
from tests.planner.factories import EMBEDDING, HEAD, NORM, CallSpec, tiny_model
from tests.published.steps import BLOCK_BYTES, EVEN, Step, block_model, step

GATHER, SCATTER, REDUCE = OutlineKind.ALL_GATHER, OutlineKind.REDUCE_SCATTER, OutlineKind.ALL_REDUCE
EVERY = GradientSync.EVERY_MICRO_BATCH
LAST = RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH)
TAIL = UnitPlan(modules=("norm", "head"), reshard_after_forward=False)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_one_micro_batch(n: int) -> None:
    """N blocks and a root: 2N+1 gathers and N+1 reduce-scatters; kept N+1; root resharded 2N+2 (docs/fsdp2.md)."""
    model = block_model(n)
    assert step(model, 4).collectives == (2 * n + 1, n + 1)
    assert step(model, 4, reshard=False).collectives == (n + 1, n + 1)
    assert step(model, 4, root_reshard=True).collectives == (2 * n + 2, n + 1)
    assert step(model, 4, reshard=False, root_reshard=False).collectives == (n + 1, n + 1)


@pytest.mark.parametrize("n", [1, 6])
def test_depth_of_prefetch_changes_no_count(n: int) -> None:
    """Prefetch moves gathers, it adds none (docs/fsdp2.md)."""
    assert {step(block_model(n), 4, prefetch=depth).collectives for depth in range(4)} == {(2 * n + 1, n + 1)}


def test_predictions_state_the_same_counts() -> None:
    """The counts of a plan are those of one micro-batch."""
    found = step(block_model(6), 4)
    prediction = predict(found.request, found.decisions)
    assert (prediction.num_all_gathers, prediction.num_reduce_scatters, prediction.num_all_reduces) == (13, 7, 0)


def stage(*, keep: bool = False, keep_after_backward: bool = False, runtime: RuntimeKnobs | None = None) -> Step:
    return step(
        block_model(8, root=None),
        4,
        num_micro_batches=8,
        reshard=not keep,
        reshard_after_backward=not keep_after_backward,
        runtime=runtime,
    )


@pytest.mark.parametrize(
    ("keep", "keep_after_backward", "gathers"), [(False, False, 128), (True, False, 64), (True, True, 8)]
)
@pytest.mark.parametrize(("runtime", "reductions"), [(None, 64), (LAST, 8)])
def test_pipeline_stage(
    keep: bool, keep_after_backward: bool, gathers: int, runtime: RuntimeKnobs | None, reductions: int
) -> None:
    """8 units and 8 micro-batches: 128, 64 or 8 gathers, 64 or 8 reductions (docs/fsdp2.md; reported case 16)."""
    found = stage(keep=keep, keep_after_backward=keep_after_backward, runtime=runtime)
    assert found.collectives == (gathers, reductions)


def test_units_kept_after_backward_alone_are_gathered_again_before_it() -> None:
    """Resharded after forward, kept after backward: a gather for each forward but the first is saved.

    8 forwards of which 7 find the unit gathered, and 8 backwards after a reshard: 8 (1 + 8) = 72.
    """
    assert stage(keep_after_backward=True).collectives == (72, 64)


def test_a_stage_that_stays_gathered_holds_all_of_its_parameters() -> None:
    """Keep if the gathered stage fits (reported case 16): all units are gathered between micro-batches."""
    found = stage(keep=True, keep_after_backward=True)
    assert (
        found.peaks.micro_batch.total_bytes
        >= 8 * BLOCK_BYTES + stage().peaks.micro_batch.total_bytes - BLOCK_BYTES * 3
    )


def test_replicas_reduce_once_more() -> None:
    """Replicas add one all-reduce to each reduction, or N+1 in the step on its last (docs/fsdp2.md)."""
    model = block_model(3)
    assert step(model, 8, replicate=2, num_micro_batches=4).count(REDUCE) == 4 * 4
    found = step(
        model,
        8,
        replicate=2,
        num_micro_batches=4,
        runtime=RuntimeKnobs(gradient_sync=GradientSync.ALL_REDUCE_ON_LAST),
    )
    assert (found.count(SCATTER), found.count(REDUCE)) == (4 * 4, 4)


def test_one_rank_gathers_and_scatters_nothing() -> None:
    """Shard degree 1 copies instead (docs/fsdp2.md; reported case 7)."""
    assert step(block_model(3), 1).collectives == (0, 0)
    assert step(block_model(3), 4, replicate=4).collectives == (0, 0)


def whole_model() -> ModelDescription:
    return tiny_model(4, block=EVEN, embedding=EMBEDDING, norm=NORM, head=HEAD, loss=None)


def test_an_embedding_of_its_own_costs_two_gathers_and_a_reduction() -> None:
    """The embedding as its own unit: 2 gathers and 1 reduce-scatter more than in the root (reported case 10)."""
    together = step(whole_model(), 2)
    apart = step(whole_model(), 2, extra_units=[UnitPlan(modules=("embed",))])
    assert [b - a for a, b in zip(together.collectives, apart.collectives, strict=True)] == [2, 1]


def test_norm_and_head_of_their_own_are_not_gathered_again() -> None:
    """`fully_shard([norm, head])` takes them from the root; kept, it adds no backward gather (reported case 10)."""
    together, apart = step(whole_model(), 2), step(whole_model(), 2, extra_units=[TAIL])
    assert [b - a for a, b in zip(together.collectives, apart.collectives, strict=True)] == [1, 1]
    assert apart.count(GATHER, "norm") == 1


def test_frozen_blocks_are_gathered_for_forward_and_one_of_them_in_vain() -> None:
    """Blocks before the first trainable one have no backward; the default prefetch does not know (docs/fsdp2.md).

    The first block with a backward prefetches the one before it, which nobody uses.
    """
    model = block_model(4, CallSpec(shapes=((64, 4),)))
    alone = {"gradient_order": (), "input_requires_grad": False, "output_requires_grad": False}
    kinds = {
        **model.kinds,
        "embedding": model.kinds["embedding"].model_copy(update=alone),
        "frozen": model.kinds["block"].model_copy(update=alone),
        "first": model.kinds["block"].model_copy(update={"input_requires_grad": False}),
    }
    names = {"layers.0": "frozen", "layers.1": "frozen", "layers.2": "first"}
    calls = tuple(Call(path=call.path, kind=names.get(call.path, call.kind)) for call in model.calls)
    found = step(model.model_copy(update={"kinds": kinds, "calls": calls}), 4)
    assert [found.count(GATHER, f"layers.{index}") for index in range(4)] == [1, 2, 2, 2]
    assert [found.count(SCATTER, f"layers.{index}") for index in range(4)] == [0, 0, 1, 1]
