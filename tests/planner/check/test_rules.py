"""What FSDP2 or the model of a step refuses, by knob."""

import pytest

from planner.check import check, recompute
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    ClientFeature,
    Decisions,
    GradientSync,
    InconsistentRequest,
    PlanRequest,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
)
from tests.planner.check.nested import Block, Knobs, nested_decisions, nested_model, nested_request
from tests.planner.check.test_report import sound_plan, sound_request
from tests.planner.factories import (
    FULL_PRECISION,
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)


def refused(request: PlanRequest, decisions: Decisions) -> str:
    with pytest.raises(InconsistentRequest) as caught:
        recompute(request, decisions)
    return str(caught.value)


def full(*modules: str) -> tuple[ActivationPlan, ...]:
    return tuple(ActivationPlan(module=module, policy=ActivationPolicy.FULL) for module in modules)


def test_other_dimensions_must_divide() -> None:
    request = tiny_request(tiny_model(1, block=CallSpec(shapes=((8, 6),))), tiny_cluster(4))
    dims = (ShardDim(parameter="layers.0.w0", dim=1),)
    message = refused(request, tiny_decisions(request).model_copy(update={"shard_dims": dims}))
    assert "dimension 1 of 'layers.0.w0' has 6 elements, which the shard degree 4 does not divide" in message


def test_other_dimensions_of_partially_resharded_units() -> None:
    # torch 2.13 fails in the copy-out: IndexError in `foreach_all_gather_copy_out`.
    request = nested_request(num_devices=4)
    message = refused(request, nested_decisions(request, Knobs(dim=1, reshard=2)))
    assert "'layers.0.norm.w0' is in a unit with partial resharding" in message
    assert recompute(request, nested_decisions(request, Knobs(dim=1, reshard=True))).num_all_gathers == 5


def test_dimensions_belong_to_the_parameter_that_others_are_tied_to() -> None:
    request = tiny_request(tiny_model(1, tied_head=True))
    dims = (ShardDim(parameter="head.w0", dim=1),)
    message = refused(request, tiny_decisions(request).model_copy(update={"shard_dims": dims}))
    assert "'head.w0' is tied; name 'embed.w0'" in message


def test_zeros_cannot_be_reduced_with_gradients_of_another_type() -> None:
    # torch 2.13: "FSDP reduce-scatter expects uniform gradient dtype" in the last micro-batch.
    model = nested_model(block=Block(has_spare=True))
    runtime = RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH, reduce_scatter_unused_params=True)
    for precision, num, is_sound in (
        (MIXED_PRECISION, 2, False),
        (MIXED_PRECISION, 1, True),
        (FULL_PRECISION, 2, True),
    ):
        request = nested_request(model, num_micro_batches=num, precision=precision)
        decisions = nested_decisions(request, Knobs(runtime=runtime))
        if is_sound:
            assert recompute(request, decisions).num_reduce_scatters == 3
        else:
            assert "zeros in bfloat16 with gradients that were accumulated in float32" in refused(
                request, decisions
            )


def test_modules_that_some_ranks_skip() -> None:
    request = nested_request(nested_model(2), num_micro_batches=2, precision=MIXED_PRECISION)
    workload = request.workload.model_copy(update={"conditional": ("layers.1*",)})
    request = request.model_copy(update={"workload": workload})
    every, last = (
        RuntimeKnobs(gradient_sync=sync, reduce_scatter_unused_params=True)
        for sync in (GradientSync.EVERY_MICRO_BATCH, GradientSync.LAST_MICRO_BATCH)
    )
    decisions = nested_decisions(request, Knobs(runtime=every))
    assert "unit 'layers.1': some ranks skip all of its modules" in refused(request, decisions)
    units = tuple(unit for unit in decisions.units if unit.modules != ("layers.1",))
    decisions = decisions.model_copy(update={"units": units})
    assert recompute(request, decisions).num_all_gathers > 0
    for runtime, message in (
        (last, "would be reduced with gradients accumulated in another type"),
        (RuntimeKnobs(), "ranks that skip a module of workload.conditional would reduce fewer tensors"),
    ):
        assert message in refused(request, decisions.model_copy(update={"runtime": runtime}))


def test_a_module_inside_a_part_needs_parts_too() -> None:
    request = nested_request()
    decisions = nested_decisions(request)
    units = (UnitPlan(modules=("layers.0.attn.w0",)), *decisions.units)
    message = refused(request, decisions.model_copy(update={"units": units}))
    assert "module 'layers.0.attn.w0' does not exist" in message


def test_units_inside_each_other_go_bottom_up() -> None:
    request = nested_request()
    assert "'layers.0.attn' is listed after 'layers.0'" in refused(
        request, nested_decisions(request, Knobs(units=("", "attn")))
    )


def test_selective_checkpointing_around_units() -> None:
    request = nested_request()
    plan = ActivationPlan(module="layers.0", policy=ActivationPolicy.SELECTIVE, saved_ops=("aten.mm.default",))
    decisions = nested_decisions(request, Knobs(units=("attn", ""))).model_copy(update={"activations": (plan,)})
    assert "selective checkpointing around units is not modelled" in refused(request, decisions)


def test_checkpointing_of_a_module_that_is_no_part() -> None:
    request = nested_request()
    decisions = nested_decisions(request).model_copy(update={"activations": full("layers.0.attn.inner")})
    assert "activations of 'layers.0.attn.inner': no call has this path" in refused(request, decisions)


def test_an_inner_unit_prefetches_what_runs_later() -> None:
    request = nested_request(nested_model(2))
    prefetch = {"layers.0.attn": ("layers.0.mlp", "layers.1"), "layers.0": ("layers.0.attn",)}
    sound = Knobs(units=("attn", "mlp", ""), forward_prefetch=prefetch)
    assert recompute(request, nested_decisions(request, sound)).num_all_gathers > 0
    wrong = Knobs(units=("attn", "mlp", ""), forward_prefetch={"layers.0.attn": ("layers.0",)})
    assert "prefetches 'layers.0' in forward, which does not run later" in refused(
        request, nested_decisions(request, wrong)
    )


def test_every_pass_of_a_unit_needs_a_later_pass_of_what_it_prefetches() -> None:
    # `layers.0` runs twice, then `layers.1` twice: no pass of `layers.0` follows the last one of `layers.1`.
    request = nested_request(nested_model(2, repeats=2))
    sound = Knobs(forward_prefetch={"layers.0": ("layers.1",)}, backward_prefetch={"layers.1": ("layers.0",)})
    assert recompute(request, nested_decisions(request, sound)).num_all_gathers > 0
    wrong = Knobs(forward_prefetch={"layers.1": ("layers.0",)})
    assert "which does not run later" in refused(request, nested_decisions(request, wrong))


def test_a_client_that_cannot_offload_or_checkpoint_selectively() -> None:
    request = sound_request()
    decisions = tiny_decisions(request)
    host = decisions.units[0].model_copy(
        update={"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    )
    plan = ActivationPlan(module="layers.0", policy=ActivationPolicy.SELECTIVE, saved_ops=("aten.mm.default",))
    body = sound_plan(request, decisions)
    changed = decisions.model_copy(update={"units": (host, *decisions.units[1:]), "activations": (plan,)})
    report = check(
        request.model_copy(update={"client_features": ()}), body.model_copy(update={"decisions": changed})
    )
    for feature in (ClientFeature.OFFLOAD, ClientFeature.CHECKPOINT_SELECTIVE):
        assert f"the plan uses {feature}, which the request's client_features do not allow" in report.problems


def test_host_memory_must_suffice() -> None:
    request = nested_request()
    (group,) = request.cluster.node_groups
    device = group.device.model_copy(update={"host_link_bytes_per_s": 10**9})
    group = group.model_copy(update={"device": device, "host_memory_bytes": 4_000})
    cluster = request.cluster.model_copy(update={"node_groups": (group,)})
    request = request.model_copy(update={"cluster": cluster})
    decisions = nested_decisions(request, Knobs(on_host=True))
    # 8 weights of 64 elements: shard 128, Adam 256 and a copy 128, gradient 128 each; two ranks share the host.
    report = check(request, sound_plan(request, decisions))
    assert "5120 bytes of host memory exceed the 2000 that a rank has" in report.problems
