"""Gathers in place, by hand: what is copied, what waits for what, and when each buffer is freed."""

from collections.abc import Iterator
from random import Random

import pytest

from planner.check import recompute
from planner.program.events import Allocate, Event, Free, Operation, OperationKind, Program, Stream, Wait
from planner.program.inputs import partition_of
from planner.program.outline import OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import Decisions, InconsistentRequest, MemoryCategory, PlanRequest, UnitPlan
from planner.simulate import predict
from planner.simulate.predict import program_of
from planner.space.aliases import aliasable
from tests.planner.factories import tiny_cluster, tiny_decisions, tiny_model, tiny_request
from tests.planner.random_layouts import laid_out

NAMES = {1: "layers.0", 2: "layers.1", 3: "layers.2", 4: "layers.3"}


def in_place(request: PlanRequest, decisions: Decisions, *, alias: bool = True) -> Decisions:
    """One layout for each block, the root is cut evenly."""
    parameters = dict(request.model.iter_parameters())
    layouts, units = [], []
    for unit in decisions.units:
        path = unit.modules[0]
        own = [(name, p) for name, p in parameters.items() if path and name.startswith(f"{path}.")]
        if own:
            layouts.append(laid_out(path, own, decisions.mesh.shard, Random(0)))
        update = {"layouts": (path,), "alias_gathers": alias} if own else {}
        units.append(unit.model_copy(update=update))
    return decisions.model_copy(update={"units": tuple(units), "layouts": tuple(layouts)})


def case(**knobs: int) -> tuple[PlanRequest, Decisions]:
    request = tiny_request(tiny_model(4), tiny_cluster(4))
    return request, in_place(request, tiny_decisions(request, **knobs))


def program(request: PlanRequest, decisions: Decisions) -> Program:
    return program_of(request, decisions).program


def lives(events: tuple[Event, ...]) -> Iterator[str]:
    """`+` where a block is gathered, `-` where its buffer is freed."""
    for event in events:
        if isinstance(event, Allocate) and event.buffer.startswith("U") and event.stream is Stream.COPY_IN:
            yield f"+{event.buffer[1:]}"
        if isinstance(event, Free) and event.buffer.startswith("U") and event.buffer != "U0":
            yield f"-{event.buffer[1:]}"


def test_nothing_is_copied_out_and_nothing_is_gathered_beside_the_buffers() -> None:
    request, decisions = case()
    built = program(request, decisions)
    outline = predicted_outline(request.model, decisions, sequence=request.workload.sequence)
    assert [operation.unit for operation in outline if operation.kind is OutlineKind.COPY_OUT] == [""]
    assert [operation.kind for operation in outline].count(OutlineKind.ALL_GATHER) == 1 + 2 * 4
    gathered = {e.buffer[0] for e in built.events if isinstance(e, Allocate) and e.stream is Stream.COPY_IN}
    assert gathered == {"A", "U"}
    categories = {e.category for e in built.events if isinstance(e, Allocate) and e.buffer == "U1"}
    assert categories == {MemoryCategory.UNSHARDED_PARAMETERS}


def test_each_gather_in_forward_frees_what_was_let_go_before_the_gather_before() -> None:
    """Blocks 3 and 4 are freed where the root ends; in backward each at once."""
    forward = ["+1", "+2", "-1", "+3", "-2", "+4", "-3", "-4"]
    backward = ["+4", "+3", "-4", "+2", "-3", "+1", "-2", "-1"]
    assert list(lives(program(*case()).events)) == forward + backward


def test_prefetch_gathers_more_before_anything_is_freed() -> None:
    forward = ["+1", "+2", "+3", "+4", "-1", "-2", "-3", "-4"]
    found = list(lives(program(*case(forward_prefetch=2)).events))
    assert found[: len(forward)] == forward


def test_the_gather_streams_wait_before_memory_is_freed() -> None:
    events = program(*case()).events
    for index, event in enumerate(events):
        if isinstance(event, Free) and event.buffer in ("U1", "U2", "U3", "U4"):
            waits = events[index - 2 : index]
            assert [wait.stream for wait in waits if isinstance(wait, Wait)] == [Stream.COPY_IN, Stream.GATHER]
            marks = [events[wait.operation] for wait in waits if isinstance(wait, Wait)]
            expected = (OperationKind.MARK, NAMES[int(event.buffer[1:])])
            assert {(mark.kind, mark.owner) for mark in marks if isinstance(mark, Operation)} == {expected}


@pytest.mark.parametrize(("depth", "before"), [(0, "layers.1"), (1, "layers.0")])
def test_a_gather_waits_for_the_computation_before_the_last(depth: int, before: str) -> None:
    """Of block 4: that of block 2; one ahead, that of block 1."""
    request, decisions = case(forward_prefetch=depth)
    outline = predicted_outline(request.model, decisions, sequence=request.workload.sequence)
    found = next(o for o in outline if (o.kind, o.unit) == (OutlineKind.COPY_IN, "layers.3"))
    assert [(outline[wait].kind, outline[wait].unit) for wait in found.waits][-1] == (OutlineKind.KERNELS, before)


def test_it_takes_less_memory_and_less_time_than_copying_out() -> None:
    request, decisions = case()
    copied = decisions.model_copy(
        update={"units": tuple(unit.model_copy(update={"alias_gathers": False}) for unit in decisions.units)}
    )
    ours, theirs = predict(request, decisions), predict(request, copied)
    assert ours.step_time_ns < theirs.step_time_ns
    assert ours.breakdown.copy_ns < theirs.breakdown.copy_ns
    assert ours.peak.reserved_bytes < theirs.peak.reserved_bytes
    assert ours.num_all_gathers == theirs.num_all_gathers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layouts": (), "alias_gathers": True}, "layers.0"),
        ({"layouts": ("layers.0", "layers.1"), "alias_gathers": True}, "layers.0"),
    ],
    ids=["no layout", "two layouts"],
)
def test_a_unit_without_a_single_layout_is_refused(change: dict[str, object], message: str) -> None:
    request = tiny_request(tiny_model(2), tiny_cluster(4))
    decisions = tiny_decisions(request)
    pair = UnitPlan(modules=("layers.0", "layers.1"))
    decisions = decisions.model_copy(update={"units": (pair, decisions.units[-1])})
    parameters = dict(request.model.iter_parameters())
    layouts = [
        laid_out(path, [(n, p) for n, p in parameters.items() if n.startswith(path)], 4, Random(0))
        for path in change["layouts"]  # type: ignore[attr-defined]
    ]
    units = (pair.model_copy(update=change), decisions.units[-1])
    decisions = decisions.model_copy(update={"units": units, "layouts": tuple(layouts)})
    for of in (predict, recompute):
        with pytest.raises(InconsistentRequest, match=message):
            of(request, decisions)


def test_a_unit_that_runs_twice_keeps_what_was_not_freed_yet() -> None:
    """Block 1 runs again at once: it waits for its first run, and gathers into the same memory.

    The search leaves such units out.
    """
    request = tiny_request(tiny_model(4), tiny_cluster(4))
    calls = request.model.calls
    model = request.model.model_copy(update={"calls": (*calls[:2], *calls[1:])})
    request = request.model_copy(update={"model": model})
    blocks = tuple(UnitPlan(modules=(f"layers.{number}",)) for number in range(4))
    decisions = in_place(request, tiny_decisions(request))
    decisions = in_place(request, decisions.model_copy(update={"units": (*blocks, decisions.units[-1])}))
    found = list(lives(program(request, decisions).events))
    assert found[:8] == ["+1", "+2", "-1", "+3", "-2", "+4", "-3", "-4"]
    predicted, expected = predict(request, decisions), recompute(request, decisions)
    assert predicted.step_time_ns == expected.step_time_ns
    assert predicted.peak.pools_bytes == {str(pool): size for pool, size in expected.pools_bytes.items()}
    parts = partition_of(request.model, decisions)
    assert aliasable(parts, [decisions.mesh] * len(parts.units)) == (False, False, True, True, True)
