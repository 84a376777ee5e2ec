"""Gradients of inputs between the backward of one call and that of the next."""

from planner.schema import Decisions, PlanRequest, UnitPlan
from planner.simulate import replay
from planner.simulate.predict import program_of
from tests.planner.factories import CallSpec, tiny_decisions, tiny_model, tiny_request

BLOCK = CallSpec(shapes=((8, 4),), full_saved=0, after_backward=10, before_sums=1_000, in_sums=(2_000, 3_000))


def blocks_only(block: CallSpec) -> PlanRequest:
    return tiny_request(tiny_model(2, block=block, embedding=None, norm=None, head=None, loss=None))


def totals(request: PlanRequest, decisions: Decisions, module: str) -> list[tuple[str, int]]:
    """Bytes at the moments after the backward of a module, in order."""
    ((program, _),) = program_of(request, decisions).programs
    points = replay(program, points=True).points
    start = next(i for i, point in enumerate(points) if point.moment.startswith("after backward of layers."))
    return [(point.moment, point.total_bytes) for point in points[start:] if point.moment.endswith(module)]


def test_they_are_added_after_the_post_backward() -> None:
    # 384 B are there for good. A block gathers U 128 from A 128, makes G 128, and reduces R 128 to D 64.
    request = blocks_only(BLOCK)
    found = dict(totals(request, tiny_decisions(request), "layers.1"))
    there = 384 + 128  # the gather of layers.0 is under way
    assert found == {
        "after backward of layers.1": there + 1_010 + 128 + 128,
        "reduce of layers.1": there + 1_010 + 128 + 128 + 64,  # G is one gradient, held until R is reduced
        "sums of input gradients of layers.1": there + 3_010 + 128 + 64,
    }


def test_a_call_amid_a_unit_adds_them_before_the_next_call() -> None:
    # The unit is whole, U 256; layers.1 has made G 128.
    request = blocks_only(BLOCK)
    decisions = tiny_decisions(request)
    unit = UnitPlan(modules=("layers.0", "layers.1"))
    decisions = decisions.model_copy(update={"units": (unit, decisions.units[-1])})
    found = totals(request, decisions, "")
    assert [moment for moment, _ in found[3:5]] == [
        "sums of input gradients of layers.1",
        "after backward of layers.0",
    ]
    assert found[3][1] == 384 + 256 + 3_010 + 128


def test_every_policy_has_its_own() -> None:
    request = blocks_only(BLOCK)  # under full checkpointing nothing is said to be alive in between
    moments = [moment for moment, _ in totals(request, tiny_decisions(request, checkpoint=["layers.1"]), "")]
    assert "sums of input gradients of layers.0" in moments
    assert "sums of input gradients of layers.1" not in moments
