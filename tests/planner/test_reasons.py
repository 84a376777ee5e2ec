"""What limits a plan, in words."""

from planner.plan import make_plan
from planner.schema import Limits, Objective
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_request

BLOCK = CallSpec(
    shapes=((64, 16), (16,)),
    saved=4000,
    backward_live=((5000, 2),),
    full_saved=500,
    full_backward_live=((6000, 2),),
    flops=10**4,
)


def test_the_step_time_that_was_asked_for_limits_a_lean_plan() -> None:
    request = tiny_request(tiny_model(4, block=BLOCK), tiny_cluster(2)).model_copy(
        update={"objective": Objective.PEAK_MEMORY, "client_features": ()}
    )
    predictions = make_plan(request).body.predictions
    assert predictions is not None
    step_ns = predictions.step_time_ns
    for limit_ns, is_named in ((step_ns, True), (2 * step_ns, False)):
        limited = request.model_copy(update={"limits": Limits(step_time_ns=limit_ns)})
        assert ("the longest step that will do" in make_plan(limited).body.reasons.binds) == is_named
