"""A sound plan passes; every corruption is named."""

import pytest

from planner.check import check, recompute
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Certificate,
    Decisions,
    DType,
    InconsistentRequest,
    Infeasibility,
    InputHashes,
    Layout,
    Limits,
    MemoryPeak,
    MeshPlan,
    Parameter,
    PlanBody,
    PlanRequest,
    Predictions,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    StepBreakdown,
    UnitPlan,
)
from tests.planner.factories import (
    HEAD,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_profile,
    tiny_request,
)

OTHER_HASH = "sha256:" + "f" * 64


def sound_request() -> PlanRequest:
    profile = tiny_profile(launch_ns=3, collective_latency_ns=20)
    return tiny_request(tiny_model(3), tiny_cluster(4), profile=profile)


def sound_plan(request: PlanRequest, decisions: Decisions | None = None) -> PlanBody:
    decisions = decisions or tiny_decisions(request, forward_prefetch=1, backward_prefetch=1)
    found = recompute(request, decisions)
    assert request.profile is not None
    return PlanBody(
        name="tiny",
        outcome="feasible",
        model_fingerprint=request.model.fingerprint,
        world_size=decisions.mesh.num_ranks,
        decisions=decisions,
        predictions=Predictions(
            step_time_ns=found.step_time_ns,
            breakdown=StepBreakdown(
                compute_ns=found.step_time_ns - found.optimizer_ns,
                optimizer_ns=found.optimizer_ns,
                total_ns=found.step_time_ns,
            ),
            peak=MemoryPeak(
                pools_bytes=dict(found.pools_bytes),
                reserved_bytes=found.reserved_bytes,
                allocated_bytes=found.allocated_bytes,
                by_category_bytes=dict(found.by_category_bytes),
            ),
            budget=found.budget,
            host_bytes=found.host_bytes,
            num_all_gathers=found.num_all_gathers,
            num_reduce_scatters=found.num_reduce_scatters,
            num_all_reduces=found.num_all_reduces,
        ),
        certificate=Certificate(
            value=found.step_time_ns, lower_bound=found.step_time_ns, gap=0.0, status="optimal"
        ),
        inputs=hashes(request),
        planner_version="0",
    )


def hashes(request: PlanRequest) -> InputHashes:
    return InputHashes(
        model=request.model.content_hash(),
        cluster=request.cluster.content_hash(),
        workload=request.workload.content_hash(),
        profile=request.profile.content_hash() if request.profile else None,
        request=request.content_hash(),
    )


def corrupted(body: PlanBody, path: str, value: object) -> PlanBody:
    """The body with one field replaced; `path` is dotted, and numbers are indices."""

    def replaced(node, steps):
        if not steps:
            return value
        step, rest = steps[0], steps[1:]
        if isinstance(node, tuple):
            index = int(step) % len(node)
            return (*node[:index], replaced(node[index], rest), *node[index + 1 :])
        if isinstance(node, dict):
            return {**node, step: replaced(node.get(step), rest)}
        return node.model_copy(update={step: replaced(getattr(node, step), rest)})

    return replaced(body, path.split("."))


def problems(path: str, value: object, request: PlanRequest | None = None) -> str:
    request = request or sound_request()
    report = check(request, corrupted(sound_plan(request), path, value))
    assert not report.passed
    return "\n".join(report.problems)


def test_a_sound_plan_passes() -> None:
    request = sound_request()
    body = sound_plan(request)
    report = check(request, body)
    assert report.problems == ()
    assert report.passed
    assert body.predictions is not None
    assert report.step_time_ns == body.predictions.step_time_ns > 0
    assert report.pools_bytes == body.predictions.peak.pools_bytes


@pytest.mark.parametrize("num_micro_batches", [1, 2])
@pytest.mark.parametrize("replicate", [1, 2, 4])
def test_sound_plans_on_other_meshes_pass(replicate: int, num_micro_batches: int) -> None:
    request = tiny_request(tiny_model(3), tiny_cluster(4), num_micro_batches=num_micro_batches)
    decisions = tiny_decisions(request, replicate=replicate, checkpoint=["layers.1"], keep=["layers.2"])
    assert check(request, sound_plan(request, decisions)).passed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inputs.model", OTHER_HASH, "inputs.model is"),
        ("inputs.cluster", OTHER_HASH, "inputs.cluster is"),
        ("inputs.workload", OTHER_HASH, "inputs.workload is"),
        ("inputs.profile", None, "inputs.profile is None"),
        ("inputs.request", OTHER_HASH, "inputs.request is"),
        ("model_fingerprint", OTHER_HASH, "model_fingerprint is"),
        ("world_size", 8, "world size 8 differs from the cluster's 4 devices"),
        ("decisions.mesh", MeshPlan(shard=2), "mesh 1 x 2 has 2 ranks, but the cluster has 4 devices"),
        ("decisions.num_micro_batches", 3, "is 12 sequences, but the global batch is 4"),
        ("decisions.micro_batch", 2, "micro-batch 2 is none that the request allows: 1"),
        ("decisions.reduce_dtype", DType.BFLOAT16, "reduce_dtype bfloat16 is none that the request allows"),
        ("decisions.units.0.modules", ("layers.9",), "module 'layers.9' does not exist"),
        ("decisions.units.0.modules", ("layers.0.w0",), "module 'layers.0.w0' does not exist"),
        ("decisions.units.0.modules", ("layers.1",), "module 'layers.1' is listed 2 times"),
        ("decisions.units.0.modules", ("layers",), "module 'layers.1' is listed after 'layers'"),
        ("decisions.units.-1.modules", ("norm",), "no unit for the root module"),
        ("decisions.units.0.modules", ("",), "the root module is listed 2 times"),
        ("decisions.units.-1.modules", ("", "norm"), "the root module shares a unit"),
        ("decisions.units.1.forward_prefetch", ("layers.0",), "in forward, which does not run later"),
        ("decisions.units.1.forward_prefetch", ("layers.1",), "in forward, which does not run later"),
        ("decisions.units.1.forward_prefetch", ("norm",), "in forward, which is not a unit that runs"),
        ("decisions.units.0.forward_prefetch", ("layers.1",) * 2, "prefetches a unit twice in forward"),
        ("decisions.units.0.backward_prefetch", ("layers.1",), "in backward, which does not run earlier"),
        ("decisions.units.1.backward_prefetch", ("",), "in backward, which is not a unit that runs"),
        ("decisions.units.0.reshard_after_forward", 1, "reshard_after_forward 1 must be written as false"),
        ("decisions.units.0.reshard_after_forward", 4, "reshard_after_forward 4 must be written as true"),
        ("decisions.units.0.reshard_after_forward", 3, "3 does not divide the shard degree 4"),
        ("decisions.units.0.parameter_tier", StateTier.NVME, "parameter_tier nvme is not modelled"),
        ("decisions.units.0.parameter_tier", StateTier.HOST, "optimizer_tier device with parameter_tier host"),
        ("decisions.units.0.optimizer_tier", StateTier.NVME, "what is offloaded has no cost"),
        ("decisions.units.0.layouts", ("ragged",), "layout 'ragged' is listed 0 times and 1 units have it"),
        (
            "decisions.layouts",
            (Layout(name="ragged", dtype=DType.FLOAT32, shard_elements=1, entries=()),),
            "layout 'ragged' is listed 1 times and 0 units have it",
        ),
        (
            "decisions.activations",
            (ActivationPlan(module="layers.7", policy=ActivationPolicy.FULL),),
            "activations of 'layers.7': no call has this path",
        ),
        (
            "decisions.activations",
            (ActivationPlan(module="head", policy=ActivationPolicy.FULL),),
            "activations of 'head': its kind cannot be checkpointed",
        ),
        (
            "decisions.activations",
            (ActivationPlan(module="layers.0", policy=ActivationPolicy.SELECTIVE, saved_ops=("aten.mm.default",)),),
            "kind 'block' does not describe checkpointing that keeps aten.mm.default (described: none)",
        ),
        (
            "decisions.activations",
            (ActivationPlan(module="layers.0", policy=ActivationPolicy.FULL, saved_ops=("aten.mm.default",)),),
            "saved_ops belong to the policy selective, not to full",
        ),
        ("decisions.shard_dims", (ShardDim(parameter="layers.9.w0", dim=1),), "no parameter 'layers.9.w0'"),
        ("decisions.shard_dims", (ShardDim(parameter="norm.w0", dim=1),), "has 1 dimensions, no dimension 1"),
        (
            "decisions.shard_dims",
            (ShardDim(parameter="layers.0.w0", dim=1),) * 2,
            "shard_dims lists 'layers.0.w0' 2 times",
        ),
        (
            "decisions.activations",
            (ActivationPlan(module="layers.0", policy=ActivationPolicy.FULL),) * 2,
            "activations of 'layers.0' are planned 2 times",
        ),
        ("decisions", None, "a feasible plan needs decisions"),
        ("predictions", None, "a feasible plan needs predictions"),
        ("certificate", None, "a feasible plan needs certificate"),
        ("infeasibility", Infeasibility(reason="no", binding="batch"), "must not give a reason"),
        ("predictions.step_time_ns", 1, "step_time_ns is predicted as 1, recomputed as"),
        ("predictions.breakdown.compute_ns", 1, "the step's breakdown adds up to"),
        ("predictions.breakdown.total_ns", 1, "breakdown.total_ns 1 differs from step_time_ns"),
        ("predictions.breakdown.optimizer_ns", 1, "breakdown.optimizer_ns is predicted as 1, recomputed as"),
        ("predictions.peak.reserved_bytes", 1, "peak.reserved_bytes is predicted as 1, recomputed as"),
        ("predictions.peak.allocated_bytes", 1, "peak.allocated_bytes is predicted as 1, recomputed as"),
        ("predictions.peak.by_category_bytes", {}, "categories add up to 0 bytes"),
        ("predictions.peak.pools_bytes", {}, "pools add up to 0 bytes"),
        ("predictions.peak.pools_bytes.reduce", 1, "pool 'reduce' is predicted as 1 bytes, recomputed as"),
        ("predictions.budget.budget_bytes", 7, "the budget is predicted as 7 bytes"),
        ("predictions.host_bytes", 5, "host_bytes is predicted as 5, recomputed as 0"),
        ("predictions.num_all_gathers", 99, "num_all_gathers is predicted as 99, recomputed as 7"),
        ("predictions.num_reduce_scatters", 99, "num_reduce_scatters is predicted as 99, recomputed as 4"),
        ("predictions.num_all_reduces", 99, "num_all_reduces is predicted as 99, recomputed as 0"),
        ("certificate.value", 1, "certificate.value 1 differs"),
        ("certificate.lower_bound", 2**40, "exceeds its value"),
        ("certificate.lower_bound", 1, "says optimal, but its bound is below its value"),
        ("certificate.gap", 0.5, "certificate.gap 0.5 should be 0.0"),
        ("certificate.objective", "peak_memory_bytes", "the certificate is for peak_memory_bytes"),
    ],
)
def test_each_corruption_has_its_message(path: str, value: object, message: str) -> None:
    assert message in problems(path, value)


def test_root_must_be_last() -> None:
    request = sound_request()
    units = tiny_decisions(request).units
    assert "it must be last" in problems("decisions.units", (units[-1], *units[:-1]), request)


def test_ties_must_share_a_unit() -> None:
    request = tiny_request(tiny_model(2, tied_head=True))
    units = tiny_decisions(request).units
    found = problems("decisions.units", (*units[:-1], UnitPlan(modules=("head",)), units[-1]), request)
    assert "'head.w0' and 'embed.w0' are tied but lie in different units" in found


def test_a_tie_inside_a_grouped_unit_passes() -> None:
    request = tiny_request(tiny_model(2, tied_head=True))
    decisions = tiny_decisions(request, extra_units=[UnitPlan(modules=("embed", "head"))])
    assert check(request, sound_plan(request, decisions)).passed


def test_peak_must_fit_the_budget() -> None:
    request = sound_request()
    request = request.model_copy(update={"limits": Limits(memory_bytes=100)})
    assert "exceeds the budget of 100" in "\n".join(check(request, sound_plan(request)).problems)


def test_step_must_keep_its_limit() -> None:
    request = sound_request()
    request = request.model_copy(update={"limits": Limits(step_time_ns=5)})
    assert "exceeds the limit of 5" in "\n".join(check(request, sound_plan(request)).problems)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (Parameter(name="w0", shape=()), "parameter 'head.w0' has no dimension"),
        (Parameter(name="w0", shape=(4, 4), contiguous=False), "parameter 'head.w0' is not contiguous"),
        (Parameter(name="w0", shape=(4,), dtype=DType.BFLOAT16), "unit '' mixes trainable storage dtypes"),
    ],
)
def test_parameters_that_fsdp2_refuses(parameter: Parameter, message: str) -> None:
    model = tiny_model(2)
    model = model.model_copy(update={"parameter_sets": {**model.parameter_sets, "head": (parameter,)}})
    request = tiny_request(model)
    with pytest.raises(InconsistentRequest) as caught:
        recompute(request, tiny_decisions(request))
    assert message in str(caught.value)


def test_units_below_calls_need_parts() -> None:
    model = tiny_model(2, head=HEAD)
    inner = (Parameter(name="inner.w0", shape=(4, 4)),)
    kind = model.kinds["head"].model_copy(update={"gradient_order": ("inner.w0",)})
    model = model.model_copy(
        update={
            "parameter_sets": {**model.parameter_sets, "head": inner},
            "kinds": {**model.kinds, "head": kind},
        }
    )
    request = tiny_request(model)
    with pytest.raises(InconsistentRequest, match="lies inside a call"):
        recompute(request, tiny_decisions(request, extra_units=[UnitPlan(modules=("head.inner",))]))


def test_prefetch_of_a_unit_without_backward() -> None:
    frozen = CallSpec(shapes=((16, 4),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
    request = tiny_request(tiny_model(2, embedding=frozen))
    decisions = tiny_decisions(request, extra_units=[UnitPlan(modules=("embed",))])
    units = decisions.units
    first = units[0].model_copy(update={"backward_prefetch": ("embed",)})
    with pytest.raises(InconsistentRequest, match="'embed' in backward, which has no backward"):
        recompute(request, decisions.model_copy(update={"units": (first, *units[1:])}))


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"replicate": 2}, "hybrid_mesh"),
        ({"forward_prefetch": 1}, "prefetch"),
        ({"reshard": 2}, "reshard_integer"),
        ({"checkpoint": ["layers.0"]}, "checkpoint_full"),
        ({"extra_units": [UnitPlan(modules=("norm", "head"))]}, "grouped_units"),
        ({"runtime": RuntimeKnobs(reduce_scatter_max_input_buffers=2)}, "reduce_scatter_buffers"),
        ({"runtime": RuntimeKnobs(separate_reduce_scatter_group=True)}, "separate_reduce_scatter_group"),
    ],
)
def test_only_knobs_that_the_client_can_apply(options: dict, feature: str) -> None:
    request = sound_request().model_copy(update={"client_features": ()})
    report = check(request, sound_plan(request, tiny_decisions(request, **options)))
    assert report.problems == (f"the plan uses {feature}, which the request's client_features do not allow",)


def test_infeasible_plans() -> None:
    request = sound_request()
    body = PlanBody(
        name="tiny",
        outcome="infeasible",
        model_fingerprint=request.model.fingerprint,
        world_size=4,
        infeasibility=Infeasibility(reason="too large", binding="batch"),
        inputs=hashes(request),
        planner_version="0",
    )
    assert check(request, body).passed
    silent = check(request, body.model_copy(update={"infeasibility": None}))
    assert silent.problems == ("an infeasible plan needs the reason why nothing fits",)


def test_unknown_devices_are_a_problem_not_an_exception() -> None:
    request = sound_request()
    body = sound_plan(request)
    group = request.cluster.node_groups[0].model_copy(update={"device": "no-such-device"})
    cluster = request.cluster.model_copy(update={"node_groups": (group,)})
    report = check(request.model_copy(update={"cluster": cluster}), body)
    assert any("costs cannot be worked out" in problem for problem in report.problems)


def test_only_a_wrong_type_raises() -> None:
    request = sound_request()
    with pytest.raises(TypeError, match="expected a PlanBody, got dict"):
        check(request, {})  # type: ignore[arg-type]
