"""Checkpointed blocks with units inside, parts and selective checkpointing by hand; costs as in `test_clocks.py`.

Each part of a block takes 100 + 200 ns and 80 to run again, keeps 16 B, and has 64 elements in float32.
"""

import pytest

from planner.check import recompute
from planner.check.calls import Calls
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    KeptBy,
    Liveness,
    Moment,
    Polynomial,
    SelectiveCheckpoint,
    SharedTensor,
    Work,
)
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.nested import (
    NESTED_DURATIONS,
    Block,
    Knobs,
    nested_decisions,
    nested_model,
    nested_request,
    saved,
)
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

COSTS = FlatCosts(durations=NESTED_DURATIONS)
INNER = Knobs(units=("attn", ""), checkpoint=True)


def test_clocks_of_a_checkpointed_block() -> None:
    # forward    block: gather 1-41, copy-out 41-42, norm 42-142; attn: gather 41-81, copy-out 142-143, 143-243
    #            mlp 243-343; gather streams wait for 143
    # backward   block: copy-in 143-144, gather 144-184, copy-out 343-344; prefetch of attn: 344-345, 345-385
    # recompute  norm 344-444; attn, a root of its own: gather streams wait for 444, copy-out 444-445, 445-545
    #            mlp stops early: 545-625
    # backward   mlp 625-825, attn 825-1025, chunk_cat 1025-1026, reduce-scatter 1026-1056
    #            norm 1026-1226, chunk_cat 1226-1227, reduce-scatter 1227-1257
    request = nested_request(nested_model(1, root=False))
    found = recompute(request, nested_decisions(request, INNER), COSTS)
    assert found.micro_batch_ns == 1_257
    assert (found.num_all_gathers, found.num_reduce_scatters) == (4, 2)


def test_memory_of_a_checkpointed_block() -> None:
    # Persistent 1152; block whole 512, attn 256; the block's input that no part saves 4.
    # mlp    all whole, kept 32, its gradient 256
    # attn   all whole, kept 16, both gradients 512: 1152 + 768 + 16 + 512, and the same when its reduce input
    #        takes the place of the whole attn
    request = nested_request(nested_model(1, root=False))
    found = recompute(request, nested_decisions(request, INNER), COSTS)
    assert found.pools_bytes == {"compute": 2_452, "copy_in": 768, "reduce": 384}


@pytest.mark.parametrize(
    "alive", [{"forward": (Moment(live_bytes=Polynomial(one=9_000)),)}, {"after_forward": Polynomial(one=9_000)}]
)
def test_what_is_alive_in_or_after_a_part_has_the_input_that_the_checkpoint_holds_among_it(alive) -> None:
    # 9,000 B, the 4 of the block's input among them: beside 1152 + 768 in forward, and in recomputation beside the
    # 16 that norm and attn each keep by the forward of mlp.
    model = nested_model(1, root=False)
    kinds = {
        name: kind.model_copy(update={"none": kind.none.model_copy(update=alive)})
        for name, kind in model.kinds.items()
        if name in ("norm", "attn") or (name == "mlp" and "forward" in alive)
    }
    request = nested_request(model.model_copy(update={"kinds": {**model.kinds, **kinds}}))
    found = recompute(request, nested_decisions(request, INNER), COSTS)
    assert found.pools_bytes["compute"] == 1_152 + 768 + 2 * 16 + 9_000


def test_a_checkpointed_block_keeps_what_the_block_keeps() -> None:
    request = nested_request(nested_model(2, root=False))
    replay = Replay(request, nested_decisions(request, INNER), COSTS)
    replay.forward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 2 * 4
    replay.backward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 512  # the last reduce input


class Logged(Replay):
    """Names the calls that run, as `forward of mlp`."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.ran: list[str] = []

    def _run_call(self, index: int, duration_ns: int, kernels: int, counted_bytes: int = 0) -> None:
        what = "part of" if duration_ns == 80 else "all of"
        self.ran.append(f"{what} {self.calls.kind_name(index)}")
        super()._run_call(index, duration_ns, kernels, counted_bytes)

    def run_backward(self, index: int) -> None:
        self.ran.append(f"backward of {self.calls.kind_name(index)}")
        super().run_backward(index)


def test_code_that_saves_nothing_neither_starts_nor_ends_a_recomputation() -> None:
    # The sum at the end of a residual block needs nothing in its backward.
    request = nested_request(nested_model(1, root=False, block=Block(end="glue")))
    replay = Logged(request, nested_decisions(request, INNER), COSTS)
    replay.forward()
    replay.ran.clear()
    replay.backward()
    assert replay.ran == [
        "backward of glue",
        "all of norm",
        "all of attn",
        "part of mlp",
        "backward of mlp",
        "backward of attn",
        "backward of norm",
    ]


def test_a_frozen_block_is_not_recomputed() -> None:
    # Nothing in it has a backward: it gives back what it kept.
    model = nested_model(2)
    frozen = {
        name: kind.model_copy(update={"output_requires_grad": False, "input_requires_grad": False})
        for name, kind in model.kinds.items()
        if name in ("norm", "attn", "mlp", "block", "embedding")
    }
    request = nested_request(model.model_copy(update={"kinds": {**model.kinds, **frozen}}))
    replay = Logged(request, nested_decisions(request, INNER), COSTS)
    replay.forward()
    replay.ran.clear()
    replay.backward()
    assert all(what.startswith("backward") for what in replay.ran)
    assert replay._kept == replay._blocks_kept == {}


def test_a_part_can_be_checkpointed_alone() -> None:
    # `attn` keeps 2 in place of 16, and is run again before its backward alone.
    request = nested_request(nested_model(1, root=False))
    plain = nested_decisions(request)
    one = (ActivationPlan(module="layers.0.attn", policy=ActivationPolicy.FULL),)
    found = recompute(request, plain.model_copy(update={"activations": one}), COSTS)
    in_parts = recompute(request, nested_decisions(request, Knobs(units=("attn", ""))), COSTS)
    replay = Replay(request, plain.model_copy(update={"activations": one}), COSTS)
    replay.forward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 16 + 2 + 16
    # forward: gather 1-41, copy-out 41-42, parts 42-342; backward: copy-out 342-343, mlp 343-543, attn again
    # 543-623 and 623-823, norm 823-1023, chunk_cat 1023-1024, reduce-scatter 1024-1054
    assert found.micro_batch_ns == 1_054
    assert in_parts.num_all_gathers == 4


@pytest.mark.parametrize(
    ("units", "expected"),
    [(("",), ["layers.0", "layers.1"]), (("attn", ""), ["norm", "attn", "mlp"])],
    ids=["whole", "parts"],
)
def test_only_blocks_that_the_plan_reaches_into_are_replaced(units: tuple[str, ...], expected: list[str]) -> None:
    request = nested_request(nested_model(2, root=False))
    decisions = nested_decisions(request, Knobs(units=units))
    if units != ("",):
        chosen = [unit for unit in decisions.units if unit.modules != ("layers.1.attn",)]
        decisions = decisions.model_copy(update={"units": tuple(chosen)})
        expected = [*(f"layers.0.{name}" for name in expected), "layers.1"]
    assert [call.path for call in Calls(request, decisions).planned] == expected


def test_a_shared_tensor_lives_with_the_first_part_of_its_first_call() -> None:
    model = nested_model(2, root=False)
    shared = (SharedTensor(size_bytes=Polynomial(one=1_000), first_call=0, last_call=1),)
    request = nested_request(model.model_copy(update={"shared": shared}))
    replay = Replay(request, nested_decisions(request, Knobs(units=("attn", ""))), COSTS)
    held = []
    replay.comm.is_in_backward = False
    for index in replay.calls.main:
        replay.run_forward(index)
        held.append(replay.machine.live_bytes(Stream.COMPUTE))
    assert held == [1_016 + 16 * index for index in range(6)]


@pytest.mark.parametrize(
    ("kept_by", "checkpointed", "expected"),
    [
        (KeptBy.BOTH, 0, 100),
        (KeptBy.BOTH, 2, 100),
        (KeptBy.NONE, 0, 100),
        (KeptBy.NONE, 1, 100),
        (KeptBy.NONE, 2, 0),
        (KeptBy.FULL, 0, 0),
        (KeptBy.FULL, 1, 100),
        (KeptBy.FULL, 2, 100),
    ],
)
def test_shared_tensors_that_depend_on_checkpointing(kept_by: KeptBy, checkpointed: int, expected: int) -> None:
    # Of calls 1 and 2, the blocks, some are checkpointed; `embed` cannot be.
    shared = (SharedTensor(size_bytes=Polynomial(one=100), first_call=0, last_call=2, kept_by=kept_by),)
    request = tiny_request(tiny_model(2, shared=shared), tiny_cluster(2))
    paths = [f"layers.{index}" for index in range(checkpointed)]
    calls = Calls(request, tiny_decisions(request, checkpoint=paths))
    assert calls.kept_bytes(0) == expected


def selective_request():
    """Two blocks that keep 100 B, 10 under full checkpointing, and 40 with the outputs of `aten.mm.default`."""
    block = CallSpec(shapes=((8, 4),), saved=100, full_saved=10)
    model = tiny_model(2, block=block, embedding=None, norm=None, head=None, loss=None)
    entry = SelectiveCheckpoint(
        saved_ops=("aten.mm.default",),
        liveness=Liveness(saved=saved(40)),
        recompute=(Work(num_kernels=1),),
    )
    kind = model.kinds["block"].model_copy(update={"selective": (entry,)})
    return tiny_request(model.model_copy(update={"kinds": {"block": kind}}), tiny_cluster(2))


def test_selective_checkpointing_keeps_and_runs_what_its_entry_says() -> None:
    # `test_two_blocks_without_root_parameters` with 50 ns before L1's backward 244-494.
    request = selective_request()
    plan = ActivationPlan(module="layers.1", policy=ActivationPolicy.SELECTIVE, saved_ops=("aten.mm.default",))
    decisions = tiny_decisions(request).model_copy(update={"activations": (plan,)})
    assert recompute(request, decisions, FlatCosts()).micro_batch_ns == 677 + 50
    replay = Replay(request, decisions, FlatCosts())
    replay.forward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 100 + 40
