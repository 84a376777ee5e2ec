"""The order of FSDP2's hooks under knobs whose effect can be written down by hand."""

from collections import Counter
from dataclasses import replace

from planner.program.inputs import knobs_of, partition_of
from planner.program.outline import Outline, OutlineKind
from planner.program.predicted import predicted_outline
from planner.program.step import MicroBatch
from planner.schema import Decisions, GradientSync, PlanRequest, RuntimeKnobs, StateTier, UnitPlan
from tests.planner.factories import MIXED_PRECISION, tiny_cluster, tiny_decisions, tiny_model, tiny_request

GATHER, COPY_OUT, REDUCE = OutlineKind.ALL_GATHER, OutlineKind.COPY_OUT, OutlineKind.REDUCE_SCATTER


def drawn(request: PlanRequest, decisions: Decisions) -> Outline:
    return predicted_outline(request.model, decisions, sequence=request.workload.sequence)


def units(outline: Outline, *kinds: OutlineKind) -> list[str]:
    """Units of the operations of some kinds, in order of issue; the root is `root`."""
    return [operation.unit or "root" for operation in outline if operation.kind in kinds]


def changed(decisions: Decisions, **update: object) -> Decisions:
    return decisions.model_copy(update={"units": tuple(u.model_copy(update=update) for u in decisions.units)})


def test_a_unit_around_others_is_gathered_before_them_and_reduced_after_them():
    request = tiny_request(tiny_model(2))
    outer = UnitPlan(modules=("layers",))
    decisions = tiny_decisions(request, extra_units=[outer])
    assert [run.unit for run in partition_of(request.model, decisions).passes] == [1, 2, 3]
    # Without parameters of its own the outer unit has no FSDP2 group; give it the norm.
    decisions = tiny_decisions(request, extra_units=[UnitPlan(modules=("layers", "norm"))])
    outline = drawn(request, decisions)
    assert units(outline, GATHER) == ["root", "layers", "layers.0", "layers.1", "layers", "layers.1", "layers.0"]
    assert units(outline, REDUCE) == ["layers.1", "layers.0", "layers", "root"]


def test_a_module_that_runs_twice_is_gathered_twice_and_reduced_once():
    model = tiny_model(2)
    first = next(index for index, call in enumerate(model.calls) if call.path == "layers.0")
    calls = (*model.calls[: first + 1], model.calls[first], *model.calls[first + 1 :])
    request = tiny_request(model.model_copy(update={"calls": calls}))
    decisions = tiny_decisions(request)
    decisions = decisions.model_copy(update={"units": decisions.units[1:]})
    outline = drawn(request, decisions)
    forward = ["root", "layers.0", "layers.0", "layers.1"]
    assert units(outline, GATHER) == [*forward, "layers.1", "layers.0", "layers.0"]
    assert units(outline, REDUCE) == ["layers.1", "layers.0", "root"], "autograd sums the gradients of both runs"


def test_a_module_that_runs_twice_and_is_kept_is_gathered_once():
    model = tiny_model(2)
    first = next(index for index, call in enumerate(model.calls) if call.path == "layers.0")
    calls = (*model.calls[: first + 1], model.calls[first], *model.calls[first + 1 :])
    request = tiny_request(model.model_copy(update={"calls": calls}))
    decisions = tiny_decisions(request, keep=["layers.0"])
    decisions = decisions.model_copy(update={"units": decisions.units[1:]})
    # After the backward of its second run it is resharded, and gathered again for that of its first.
    assert Counter(units(drawn(request, decisions), GATHER)) == {"root": 1, "layers.0": 2, "layers.1": 2}


def test_a_partially_resharded_unit_is_gathered_from_its_copy():
    request = tiny_request(tiny_model(1), tiny_cluster(4))
    outline = drawn(request, tiny_decisions(request, reshard=2))
    kinds = [operation.kind for operation in outline if operation.unit == "layers.0"]
    assert kinds.count(OutlineKind.RESHARD) == 1
    copied = [o.size_bytes for o in outline if o.unit == "layers.0" and o.kind is OutlineKind.COPY_IN]
    assert copied == [8 * 4 * 4 // 4, 8 * 4 * 4 // 2], "a quarter of the unit in forward, half of it in backward"
    reshard = next(i for i, o in enumerate(outline) if o.kind is OutlineKind.RESHARD)
    again = [o for o in outline if o.unit == "layers.0" and o.kind is OutlineKind.COPY_IN][1]
    assert any(wait >= reshard for wait in again.waits)


def test_units_that_stay_gathered_between_micro_batches():
    request = tiny_request(tiny_model(3), num_micro_batches=4)
    kept = changed(tiny_decisions(request, reshard=False), reshard_after_backward=False)
    outline = drawn(request, kept)
    assert [o.micro_batch for o in outline if o.kind is GATHER] == [0] * 4
    half = changed(tiny_decisions(request), reshard_after_backward=False)
    gathered = Counter(o.micro_batch for o in drawn(request, half) if o.kind is GATHER)
    assert gathered == {0: 7, 1: 3, 2: 3, 3: 3}, "blocks are resharded after forward all the same"


def test_gradients_are_summed_whole_until_the_last_micro_batch():
    runtime = RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH)
    request = tiny_request(tiny_model(2), num_micro_batches=3, precision=MIXED_PRECISION)
    outline = drawn(request, tiny_decisions(request, runtime=runtime))
    assert {o.micro_batch for o in outline if o.kind is REDUCE} == {2}
    accumulated = Counter(o.micro_batch for o in outline if o.kind is OutlineKind.ACCUMULATE)
    assert accumulated == {0: 3, 1: 3, 2: 3}
    plain = tiny_request(tiny_model(2), num_micro_batches=3)
    outline = drawn(plain, tiny_decisions(plain, runtime=runtime))
    assert not units(outline, OutlineKind.ACCUMULATE), "autograd adds gradients of one type by itself"


def test_replicas_are_reduced_on_the_last_micro_batch():
    runtime = RuntimeKnobs(gradient_sync=GradientSync.ALL_REDUCE_ON_LAST)
    request = tiny_request(tiny_model(1), tiny_cluster(4), num_micro_batches=2)
    outline = drawn(request, tiny_decisions(request, shard=2, replicate=2, runtime=runtime))
    assert Counter(o.micro_batch for o in outline if o.kind is REDUCE) == {0: 2, 1: 2}
    assert Counter(o.micro_batch for o in outline if o.kind is OutlineKind.ALL_REDUCE) == {1: 2}


def test_offloaded_units_are_copied_to_the_device_and_their_gradients_back():
    request = tiny_request(tiny_model(1))
    decisions = changed(tiny_decisions(request), parameter_tier=StateTier.HOST, optimizer_tier=StateTier.HOST)
    kinds = Counter(operation.kind for operation in drawn(request, decisions))
    assert kinds[OutlineKind.HOST_TO_DEVICE] == kinds[GATHER] == 3
    assert kinds[OutlineKind.OFFLOAD] == kinds[REDUCE] == 2


def test_what_a_micro_batch_finds():
    request = tiny_request(tiny_model(1), num_micro_batches=2)
    decisions = tiny_decisions(request, runtime=RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH))
    knobs = knobs_of(decisions, partition_of(request.model, decisions))
    first = replace(knobs, micro_batch=MicroBatch(is_first=True, is_last=False))
    last = replace(knobs, micro_batch=MicroBatch(is_first=False, is_last=True))
    assert (first.reduces, first.finds_whole_gradients, first.finds_sharded_gradients(0)) == (False, False, False)
    assert (last.reduces, last.finds_whole_gradients, last.finds_sharded_gradients(0)) == (True, True, False)
