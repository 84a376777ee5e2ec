"""What each torch release has. The installed release is read too, so that a new one cannot pass unnoticed."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from planner.catalog.torch_versions import (
    DIFFERENCES,
    KNOBS,
    MODELLED,
    RELEASES,
    differences,
    required_torch,
    supported,
    used_knobs,
)
from planner.older_torch import older_torch_notes
from planner.plan import make_plan
from planner.refuse import refuse_missing_knobs
from planner.schema import (
    Call,
    ClientFeature,
    Decisions,
    DType,
    GradientSync,
    InconsistentRequest,
    MeshPlan,
    ModelDescription,
    PlanRequest,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
    UnknownName,
    UnsupportedField,
)
from planner.simulate.predict import predict
from planner.space.fixed import allows
from tests.planner.factories import MIXED_PRECISION, CallSpec, tiny_decisions, tiny_model, tiny_request

FROZEN = CallSpec(shapes=((8, 4),), requires_grad=False, full_saved=0)
EVERY_UNIT_KNOB = UnitPlan(
    modules=("a", "b"),
    mesh=MeshPlan(replicate=2, shard=4),
    reshard_after_forward=2,
    reshard_after_backward=False,
    forward_prefetch=("c",),
    backward_prefetch=("c",),
    parameter_tier=StateTier.HOST,
)


def decisions(unit: UnitPlan | None = None, **changes: Any) -> Decisions:
    root = UnitPlan(modules=("",))
    fields = {"mesh": MeshPlan(shard=4), "micro_batch": 1, "num_micro_batches": 1}
    return Decisions(units=(unit, root) if unit else (root,), **{**fields, **changes})


def request_for(version: str, **model: Any) -> PlanRequest:
    request = tiny_request(tiny_model(**model))
    return request.model_copy(update={"workload": request.workload.model_copy(update={"torch_version": version})})


def runtime(**fields: Any) -> Iterator[tuple[str, Decisions]]:
    for name, value in fields.items():
        yield name, decisions(runtime=RuntimeKnobs(**{name: value}))


@pytest.mark.parametrize(
    ("knob", "since"),
    [
        ("prefetch", "2.11"),
        ("reshard_after_forward_ranks", "2.11"),
        ("integer_parameters", "2.12"),
        ("reduce_scatter_max_input_buffers", "2.13"),
        ("separate_reduce_scatter_group", "2.13"),
        ("reduce_scatter_unused_params", "2.13"),
    ],
)
def test_first_release_of_a_knob(knob: str, since: str) -> None:
    assert [release for release in RELEASES if supported(knob, release)] == [r for r in RELEASES if r >= since]


@pytest.mark.parametrize("version", ["2.13", "2.13.0", "2.13.1+cu128", "2.14.0.dev20260901", "3.0"])
def test_patches_builds_and_later_releases_have_what_the_release_has(version: str) -> None:
    assert all(supported(knob, version) for knob in KNOBS)


def test_unknown_knobs_and_versions_are_named() -> None:
    with pytest.raises(UnknownName, match=r"unknown FSDP2 knob 'warp'; known: .*prefetch"):
        supported("warp", "2.13")
    with pytest.raises(ValueError, match="'new' is not a version"):
        supported("prefetch", "new")


def test_the_installed_release_has_every_setter_that_the_table_names() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    assert fsdp.FSDPModule.set_reduce_scatter_max_input_buffers
    setters = [word for knob in KNOBS.values() for word in knob.source.split() if word.startswith("set_")]
    assert len(setters) >= 7
    assert [word for word in setters if not hasattr(fsdp.FSDPModule, word.rstrip(","))] == []


def test_the_installed_release_is_the_modelled_one_and_frees_the_input_it_waited_for() -> None:
    torch = pytest.importorskip("torch")
    group = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    assert torch.__version__.startswith(MODELLED)
    assert "del oldest" in inspect.getsource(group.FSDPParamGroup.post_backward)


def test_all_that_decisions_use_is_found_with_its_path() -> None:
    found = list(used_knobs(decisions(EVERY_UNIT_KNOB, mesh=MeshPlan(replicate=4, shard=2))))
    assert found == [
        ("decisions.units[0].modules", "grouped_units"),
        ("decisions.units[0].mesh", "unit_mesh"),
        ("decisions.units[0].mesh", "hybrid_mesh"),
        ("decisions.units[0].reshard_after_forward", "reshard_after_forward"),
        ("decisions.units[0].reshard_after_forward", "reshard_after_forward_ranks"),
        ("decisions.units[0].reshard_after_backward", "reshard_after_backward"),
        ("decisions.units[0].forward_prefetch", "prefetch"),
        ("decisions.units[0].backward_prefetch", "prefetch"),
        ("decisions.units[0].parameter_tier", "parameter_tier_host"),
        ("decisions.mesh.replicate", "hybrid_mesh"),
    ]
    others = decisions(
        reduce_dtype=DType.FLOAT16,
        shard_dims=(ShardDim(parameter="w", dim=1),),
        runtime=RuntimeKnobs(gradient_sync=GradientSync.ALL_REDUCE_ON_LAST, post_optimizer_event=True),
    )
    assert [knob for _, knob in used_knobs(others)] == [
        "float16_reduction",
        "shard_dims",
        "gradient_sync_all_reduce_on_last",
        "post_optimizer_event",
    ]
    assert {knob for _, knob in found} | {knob for _, knob in used_knobs(others)} <= KNOBS.keys()


@pytest.mark.parametrize("ranks", [None, True, False, 1, 4])
def test_resharding_to_one_or_all_ranks_is_no_partial_resharding(ranks: bool | int | None) -> None:
    unit = UnitPlan(modules=("a",), reshard_after_forward=ranks)
    assert "reshard_after_forward_ranks" not in [knob for _, knob in used_knobs(decisions(unit))]


def test_required_release_is_the_lowest_that_has_all_of_it() -> None:
    assert required_torch(decisions()) == ">=2.11"
    assert required_torch(decisions(EVERY_UNIT_KNOB)) == ">=2.11"
    integers = tiny_model(block=FROZEN, dtype=DType.INT8)
    assert required_torch(decisions(), integers) == ">=2.12"
    new = runtime(
        reduce_scatter_max_input_buffers=2, separate_reduce_scatter_group=True, reduce_scatter_unused_params=True
    )
    assert {name: required_torch(one, integers) for name, one in new} == {
        "reduce_scatter_max_input_buffers": ">=2.13",
        "separate_reduce_scatter_group": ">=2.13",
        "reduce_scatter_unused_params": ">=2.13",
    }


def test_plans_say_which_torch_they_need() -> None:
    assert make_plan(request_for("2.12")).body.requires.torch == ">=2.11"


def test_a_knob_that_the_trainers_torch_lacks_is_refused_by_path() -> None:
    request = request_for("2.12")
    wanted = tiny_decisions(request, runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=2))
    with pytest.raises(InconsistentRequest, match=r"max_input_buffers needs FSDP2 of torch 2\.13 or later, but"):
        predict(request, wanted)
    refuse_missing_knobs(wanted, request.model, "2.13.0")


def test_a_feature_that_the_trainers_torch_lacks_is_not_used() -> None:
    allowed = {version: allows(request_for(version), ClientFeature.REDUCE_SCATTER_BUFFERS) for version in RELEASES}
    assert allowed == {"2.11": False, "2.12": False, "2.13": True}
    assert all(allows(request_for(version), ClientFeature.PREFETCH) for version in RELEASES)


def test_integer_parameters_are_refused_before_2_12() -> None:
    blocks = {"block": FROZEN, "dtype": DType.INT8, "embedding": None, "norm": None, "head": None}
    with pytest.raises(UnsupportedField, match=r"torch 2\.11\.0 fails for the integer parameter 'layers\.0\.w0'"):
        make_plan(request_for("2.11.0", **blocks))


@pytest.mark.parametrize("version", ["2.10", "2.14", "latest", "2"])
def test_releases_that_nobody_has_read_are_refused(version: str) -> None:
    with pytest.raises(UnsupportedField, match=r"knows FSDP2 of torch 2\.11, 2\.12 and 2\.13"):
        make_plan(request_for(version))


def test_differences_are_those_of_the_release_and_none_of_the_modelled_one() -> None:
    assert differences("2.13.0") == {}
    assert "reduce_input_kept_beside_the_next" in differences("2.12.1")
    assert "reduce_input_kept_beside_the_next" not in differences("2.11")
    assert set(differences("2.11")) | set(differences("2.12")) == set(DIFFERENCES)


def test_what_2_12_holds_longer_is_noted_with_the_most_that_it_adds() -> None:
    request = tiny_request(tiny_model(2), precision=MIXED_PRECISION)
    request = request.model_copy(update={"workload": request.workload.model_copy(update={"torch_version": "2.12"})})
    (note,) = older_torch_notes(request, tiny_decisions(request))
    root = 4 * (16 * 4 + 4 + 16 * 4)  # embedding, norm and head in float32, nothing padded
    assert f"higher by up to {root} bytes" in note
    (planned,) = [text for text in make_plan(request).body.reasons.notes if "torch 2.12" in text]
    assert planned.startswith(note.partition(" by up to")[0])
    assert list(older_torch_notes(request_for("2.13"), tiny_decisions(request_for("2.13")))) == []


def test_what_2_11_holds_through_a_unit_without_gradients_is_noted() -> None:
    request = request_for("2.11", num_blocks=3)
    kinds = {**request.model.kinds, "idle": request.model.kinds["block"].model_copy(update={"gradient_order": ()})}
    calls = tuple(
        call.model_copy(update={"kind": "idle"}) if call.path == "layers.1" else call
        for call in request.model.calls
    )
    model = request.model.model_copy(update={"kinds": kinds, "calls": calls})
    (note,) = older_torch_notes(request.model_copy(update={"model": model}), tiny_decisions(request))
    assert "held through the backward of 'layers.1'" in note
    assert list(older_torch_notes(request, tiny_decisions(request))) == []


def model_with_parts() -> ModelDescription:
    """Two blocks, each of one part that holds its parameters."""
    model = tiny_model(2)
    block = model.kinds["block"].model_copy(
        update={"gradient_order": ("mlp.w0",), "parts": (Call(path="mlp", kind="mlp"),)}
    )
    modules = tuple(
        module.model_copy(update={"path": f"{module.path}.mlp"}) if "layers" in module.path else module
        for module in model.modules
    )
    kinds = {**model.kinds, "block": block, "mlp": model.kinds["block"]}
    return model.model_copy(update={"kinds": kinds, "modules": modules})


def test_units_inside_a_checkpointed_module_are_noted_before_2_13() -> None:
    request = request_for("2.12").model_copy(update={"model": model_with_parts()})
    plain = tiny_decisions(request, checkpoint=["layers.0"])
    inner = plain.model_copy(update={"units": (UnitPlan(modules=("layers.0.mlp",)), *plain.units)})
    assert [note for note in older_torch_notes(request, plain) if "recomputed" in note] == []
    (note,) = [note for note in older_torch_notes(request, inner) if "recomputed" in note]
    assert "units inside 'layers.0' do not cast inputs" in note
