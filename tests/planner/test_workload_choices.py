"""Choices about the workload itself: reduce dtype and optimizer implementation; activations on the host."""

import pytest

from planner.check import check, recompute
from planner.plan import make_plan
from planner.program.events import Operation, OperationKind, Stream
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    ClientFeature,
    CopyMeasurement,
    DType,
    FixedChoice,
    InconsistentRequest,
    Limits,
    Objective,
    PlanRequest,
    Precision,
    SearchLimits,
)
from planner.simulate import predict
from planner.simulate.predict import program_of
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_profile, tiny_request

EXACT = SearchLimits(gap=0.0, deterministic_time=200.0)
BLOCK = CallSpec(
    shapes=((64, 16), (16,)),
    saved=4000,
    forward_live=(5000,),
    backward_live=((5000, 0), (6000, 1), (3000, 2)),
    full_saved=500,
    full_backward_live=((6000, 0), (7000, 1), (1000, 2)),
)
MIXED = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)


COPIES = (
    CopyMeasurement(direction="device_to_device", bytes_per_s=10**12),
    CopyMeasurement(direction="host_to_device", bytes_per_s=10**10),
    CopyMeasurement(direction="device_to_host", bytes_per_s=10**10),
)


def request(*features: ClientFeature, block: CallSpec = BLOCK, **update: object) -> PlanRequest:
    profile = tiny_profile().model_copy(update={"copies": COPIES})
    made = tiny_request(tiny_model(4, block=block), tiny_cluster(4), precision=MIXED, profile=profile)
    return made.model_copy(update={"search": EXACT, "client_features": features} | update)


def test_a_leaner_reduction_is_chosen_only_where_it_is_allowed() -> None:
    own = make_plan(request()).body
    allowed = make_plan(request(reduce_dtypes=(DType.BFLOAT16,))).body
    leaner = MIXED.model_copy(update={"reduce_dtype": DType.BFLOAT16})
    asked = make_plan(request(workload=request().workload.model_copy(update={"precision": leaner}))).body
    assert own.decisions is not None
    assert allowed.decisions is not None
    assert (own.decisions.reduce_dtype, allowed.decisions.reduce_dtype) == (DType.FLOAT32, DType.BFLOAT16)
    assert own.predictions is not None
    assert allowed.predictions is not None
    assert asked.predictions is not None
    assert allowed.predictions.step_time_ns == asked.predictions.step_time_ns < own.predictions.step_time_ns


def test_the_implementation_that_fits_is_chosen() -> None:
    """On one rank the optimizer step is the peak; fused needs no copy of the parameters there."""
    alone = tiny_request(tiny_model(8, block=CallSpec(shapes=((64, 16),), saved=10)), tiny_cluster(1))
    small_units = (
        FixedChoice(knob="*.reshard_after_forward", value=True),
        FixedChoice(knob="blocks_per_unit", value=1),
    )
    alone = alone.model_copy(update={"fixed": small_units})
    decisions = make_plan(alone).body.decisions
    assert decisions is not None
    fused_decisions = decisions.model_copy(update={"optimizer_implementation": "fused"})
    foreach, fused = (predict(alone, chosen).peak.reserved_bytes for chosen in (decisions, fused_decisions))
    assert fused < foreach
    tight = alone.model_copy(
        update={
            "limits": Limits(memory_bytes=fused),
            "optimizer_implementations": ("fused", "for_loop"),
            "client_features": (),
            "search": EXACT,
        }
    )
    body = make_plan(tight).body
    assert body.decisions is not None
    assert body.decisions.optimizer_implementation == "fused"
    assert check(tight, body).passed


def test_what_the_request_does_not_allow_is_no_plan_of_it() -> None:
    tight = request(reduce_dtypes=(DType.BFLOAT16,), optimizer_implementations=("fused",))
    body = make_plan(tight).body
    problems = check(request(), body).problems
    assert any("reduce_dtype" in problem for problem in problems)
    wrong = tight.model_copy(update={"optimizer_implementations": ()})
    assert body.decisions is not None
    other = body.model_copy(
        update={"decisions": body.decisions.model_copy(update={"optimizer_implementation": "for_loop"})}
    )
    assert any("optimizer_implementation for_loop" in problem for problem in check(wrong, other).problems)


@pytest.mark.parametrize(("knob", "value"), [("reduce_dtype", "float32"), ("optimizer_implementation", "foreach")])
def test_a_fixed_choice_keeps_the_workloads_own(knob: str, value: str) -> None:
    fixed = request(
        reduce_dtypes=(DType.BFLOAT16,),
        optimizer_implementations=("fused",),
        fixed=(FixedChoice(knob=knob, value=value),),
    )
    decisions = make_plan(fixed).body.decisions
    assert decisions is not None
    if knob == "reduce_dtype":
        assert decisions.reduce_dtype is DType.FLOAT32
    else:
        assert decisions.optimizer_implementation is None


def test_a_fixed_choice_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(InconsistentRequest, match="reduce_dtype"):
        make_plan(request(fixed=(FixedChoice(knob="reduce_dtype", value="float16"),)))


def test_activations_go_to_the_host_where_nothing_else_fits() -> None:
    least = make_plan(request(objective=Objective.PEAK_MEMORY)).body.predictions
    assert least is not None
    limits = Limits(memory_bytes=least.peak.reserved_bytes - 1)
    assert make_plan(request(limits=limits)).body.infeasibility is not None
    tight = request(ClientFeature.ACTIVATION_OFFLOAD, limits=limits)
    body = make_plan(tight).body
    assert body.decisions is not None
    assert body.predictions is not None
    assert {entry.policy for entry in body.decisions.activations} == {ActivationPolicy.OFFLOAD}
    assert body.predictions.host_bytes == 4000 * len(body.decisions.activations)
    assert ClientFeature.ACTIVATION_OFFLOAD in body.requires.client_features
    assert check(tight, body).passed


def test_how_many_blocks_offload_can_be_fixed() -> None:
    known = request(ClientFeature.ACTIVATION_OFFLOAD, fixed=(FixedChoice(knob="activation_offload", value=2),))
    decisions = make_plan(known).body.decisions
    assert decisions is not None
    assert [entry.module for entry in decisions.activations] == ["layers.0", "layers.2"]


@pytest.mark.parametrize("norm_saved", [0, 600])
def test_what_keeps_nothing_fetches_nothing(norm_saved: int) -> None:
    """The backward of the norm begins to bring back what block 0 keeps only where the norm keeps something too."""
    asked = request()
    model = tiny_model(2, block=BLOCK, norm=CallSpec(shapes=((4,),), saved=norm_saved))
    asked = asked.model_copy(update={"model": model})
    offloaded = tuple(ActivationPlan(module=path, policy=ActivationPolicy.OFFLOAD) for path in ("layers.0", "norm"))
    decisions = tiny_decisions(asked).model_copy(update={"activations": offloaded})
    found = predict(asked, decisions)
    again = recompute(asked, decisions)
    assert (again.step_time_ns, again.allocated_bytes) == (found.step_time_ns, found.peak.allocated_bytes)
    events = program_of(asked, decisions).program.events
    order = [(e.kind, e.owner) for e in events if isinstance(e, Operation) and e.stream is Stream.OFFLOAD]
    sent = [(OperationKind.ACTIVATION_OUT, "layers.0"), (OperationKind.ACTIVATION_IN, "layers.0")]
    if norm_saved:
        out, back = (OperationKind.ACTIVATION_OUT, "norm"), (OperationKind.ACTIVATION_IN, "norm")
        sent = [sent[0], out, back, sent[1]]
    assert order == sent
    fetch = next(i for i, e in enumerate(events) if isinstance(e, Operation) and (e.kind, e.owner) == sent[-1])
    done = [e.owner for e in events[:fetch] if isinstance(e, Operation) and e.kind is OperationKind.BACKWARD]
    assert ("layers.1" in done) is (norm_saved == 0)
