"""Bytes between calls that FSDP2's hooks find: the cast of the output, inputs of a call, recomputed parts."""

import pytest

from planner.schema import (
    OUTPUT_PATH,
    Call,
    CallRole,
    Decisions,
    KeptBy,
    ModelDescription,
    PlanRequest,
    Polynomial,
    SharedTensor,
)
from planner.simulate import replay
from planner.simulate.predict import program_of
from tests.planner.check.nested import Knobs, nested_decisions, nested_model, nested_request
from tests.planner.factories import CallSpec, call_kind, tiny_cluster, tiny_decisions, tiny_model, tiny_request


def totals(request: PlanRequest, decisions: Decisions) -> dict[str, int]:
    """Most bytes at each moment."""
    ((program, _),) = program_of(request, decisions).programs
    found: dict[str, int] = {}
    for point in replay(program, points=True).points:
        found[point.moment] = max(found.get(point.moment, 0), point.total_bytes)
    return found


def living(model: ModelDescription, name: str, **sizes: int) -> ModelDescription:
    """The model with other sizes between calls of one kind."""
    kind = model.kinds[name]
    none = kind.none.model_copy(update={field: Polynomial(one=size) for field, size in sizes.items()})
    return model.model_copy(update={"kinds": {**model.kinds, name: kind.model_copy(update={"none": none})}})


def with_output_cast(model: ModelDescription, spec: CallSpec) -> ModelDescription:
    """The model with a cast of its output before the loss."""
    kinds = {**model.kinds, "output": call_kind(spec, CallRole.GLUE)}
    calls = (*model.calls[:-1], Call(path=OUTPUT_PATH, kind="output"), model.calls[-1])
    return model.model_copy(update={"kinds": kinds, "calls": calls})


def test_the_last_gather_is_held_until_the_output_is_cast() -> None:
    # 192 B are there for good, A is 128. `_post_forward` frees A when it returns what it has cast.
    model = tiny_model(1, embedding=None, norm=None, head=None, loss=CallSpec(forward_live=(500,)))
    model = with_output_cast(model, CallSpec(forward_live=(1_000,), backward_live=((300, 0),)))
    request = tiny_request(living(model, "output", after_forward=700, after_backward=50))
    found = totals(request, tiny_decisions(request))
    assert found["forward of (output), point 0"] == 192 + 128 + 1_000
    assert found["after forward of (output)"] == 192 + 128 + 700
    assert found["forward of (loss), point 0"] == 192 + 500
    # Its backward comes first: the root has hooked what it casts.
    assert found["backward of (output), point 0"] == 192 + 300
    assert found["copy-out of layers.0 in backward"] == 192 + 50 + 128 + 128


@pytest.mark.parametrize(
    ("checkpointed", "at_third"), [([], 0), (["layers.0"], 5_000), (["layers.1"], 5_000), (["layers.2"], 0)]
)
def test_what_callers_hold_stays_only_where_a_call_keeps_it(checkpointed: list[str], at_third: int) -> None:
    block = CallSpec(shapes=((8, 4),), saved=100, full_saved=10, forward_live=(200,))
    tensor = SharedTensor(
        size_bytes=Polynomial(one=5_000), first_call=0, last_call=1, kept_by=KeptBy.FULL, held_until=1
    )
    without, held = (
        tiny_request(tiny_model(3, block=block, embedding=None, norm=None, head=None, shared=shared))
        for shared in ((), (tensor,))
    )
    decisions = tiny_decisions(held, checkpoint=checkpointed)
    before, after = totals(without, decisions), totals(held, decisions)
    added = [after[moment] - before[moment] for moment in (f"forward of layers.{n}, point 0" for n in range(3))]
    assert added == [0, 5_000, at_third]


def test_partial_resharding_finds_what_the_caller_of_a_block_holds() -> None:
    # 96 B are there for good, A is 128; U 128 and half of it lie beside each other; 10 B are for the next call, and
    # the caller holds 1,000 until the block has returned.
    model = tiny_model(1, embedding=None, norm=None, head=None, loss=None)
    request = tiny_request(living(model, "block", after_forward=10, at_return=1_000), tiny_cluster(4))
    found = totals(request, tiny_decisions(request, reshard=2))
    assert found["reshard of layers.0 after forward"] == 96 + 128 + 128 + 64 + 10 + 1_000
    assert found["gather of layers.0 in backward"] == 96 + 64 + 10 + 128


def test_recomputed_parts_hand_on_what_they_did_and_the_checkpoint_holds_the_input() -> None:
    # 1,152 B are there for good; block 512, attn 256. The checkpoint holds 4 B, which are among the 30 B that are
    # alive after a part: 26 more. A part that has run again keeps 16.
    model = nested_model(1, root=False)
    for name in ("norm", "attn"):
        model = living(model, name, after_forward=30)
    request = nested_request(model)
    found = totals(request, nested_decisions(request, Knobs(units=("attn", ""), checkpoint=True)))
    whole = 1_152 + 512
    assert found["recomputation of layers.0"] == whole + 256 + 4, "attn is being gathered"
    assert found["after recomputation of layers.0.norm"] == whole + 256 + 4 + 16 + 26
    assert found["copy-out of layers.0.attn in recomputation"] == whole + 256 + 256 + 4 + 16 + 26
    assert found["after recomputation of layers.0.mlp"] == whole + 256 + 4 + 3 * 16


def test_a_checkpoint_holds_inputs_that_its_parts_do_not_save_to_the_end_of_its_backward() -> None:
    # As above; the block is the first to hold 1,000 B more, which are among what is alive after its parts.
    model = nested_model(1, root=False)
    model = living(living(model, "norm", after_forward=1_030), "attn", after_forward=1_030)
    table = SharedTensor(size_bytes=Polynomial(one=1_000), first_call=0, last_call=0, kept_by=KeptBy.FULL)
    request = nested_request(model.model_copy(update={"shared": (table,)}))
    found = totals(request, nested_decisions(request, Knobs(units=("attn", ""), checkpoint=True)))
    whole = 1_152 + 512 + 1_000
    assert found["after recomputation of layers.0.norm"] == whole + 256 + 4 + 16 + 26
    # Attn and the last gradient of three are reduced: R 256 and D 128. Norm makes the last gradient of the block.
    assert found["after backward of layers.0.norm"] == whole + 4 + 2 * 256 + 256 + 128
