"""What an applied plan does for trainers that have loops of their own."""

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from planner.schema.decisions import GradientSync
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.errors import BatchDiffersFromPlan, OptimizerBuiltTooEarly
from tests.runtime_client.apply.test_apply import plan_for, small


def applied_plan(**fields: object) -> AppliedPlan:
    model = small()
    plan = plan_for(model, num_micro_batches=3, runtime={"gradient_sync": GradientSync.LAST_MICRO_BATCH}, **fields)
    return apply_plan(model, plan, device_type="cpu")


def reduces(applied: AppliedPlan) -> bool:
    assert isinstance(applied.model, FSDPModule)
    group = applied.model._get_fsdp_state()._fsdp_param_group
    assert group is not None
    return group.reduce_grads


def test_a_trainer_may_say_only_which_micro_batch_is_the_last(world: int) -> None:
    applied = applied_plan()
    seen = []
    for is_last in (False, True, False):
        applied.set_is_last_micro_batch(is_last)
        seen.append(reduces(applied))
    assert seen == [False, True, False]


def test_forwards_in_training_are_counted_and_others_are_not(world: int) -> None:
    applied = applied_plan()
    applied.count_micro_batches()
    (begin,) = (hook for hook in applied.model._forward_pre_hooks.values() if hook.__name__ == "begin")
    seen = []
    for training in (True, True, False, True, True):
        applied.model.train(training)
        begin(applied.model, ())
        seen.append(reduces(applied))
    applied.model.train()
    with torch.no_grad():
        begin(applied.model, ())
    assert [*seen, reduces(applied)] == [False, False, False, True, False, False]


def test_other_batches_are_refused(world: int) -> None:
    applied = applied_plan(micro_batch=2)
    applied.check_batches(micro_batch=2, num_micro_batches=3)
    with pytest.raises(BatchDiffersFromPlan, match=r"after 4 micro-batches of 2 sequences per rank, .* for 3 of 2"):
        applied.check_batches(micro_batch=2, num_micro_batches=4)
    with pytest.raises(BatchDiffersFromPlan, match="--micro-batch 1"):
        applied.check_batches(micro_batch=1, num_micro_batches=3)


def test_a_watched_optimizer_says_when_it_has_stepped(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    applied = applied_plan()
    steps = []
    monkeypatch.setattr(AppliedPlan, "after_optimizer_step", lambda self: steps.append(self))
    optimizer = torch.optim.AdamW(applied.model.parameters())
    applied.watch(optimizer)
    optimizer.step()
    optimizer.step()
    assert steps == [applied, applied]
    with pytest.raises(OptimizerBuiltTooEarly):
        applied.watch(torch.optim.AdamW(small().parameters()))
