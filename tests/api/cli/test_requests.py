import re
from typing import get_args

import pytest

from api.cli.options import QUANTIZERS, ImplementationChoice, OptimizerChoice, RequestOptions
from api.cli.requests import parse_choice, parse_dtype, parse_duration, parse_size
from planner.schema import (
    AtomRule,
    DType,
    FlatAtom,
    InconsistentRequest,
    InvalidDocument,
    Limits,
    Objective,
    OptimizerGroup,
    OptimizerName,
    PlanRequest,
    Quantizer,
    QuantizerGroup,
    TileAtom,
    UnknownName,
)


@pytest.fixture
def files(tmp_path, request_document):
    (tmp_path / "model.json").write_text(request_document.model.to_json())
    (tmp_path / "cluster.json").write_text(request_document.cluster.to_json())
    (tmp_path / "request.json").write_text(request_document.to_json())
    return tmp_path


def options(files, **more):
    places = {"model": str(files / "model.json"), "cluster": str(files / "cluster.json")}
    return RequestOptions(**{**places, "sequence": 4096, "global_batch": 64, **more})


@pytest.mark.parametrize(
    ("text", "value"),
    [("70GiB", 70 * 2**30), ("80 GB", 80 * 10**9), ("1.5mib", 3 * 2**19), ("1024", 1024), (" 2 TiB ", 2**41)],
)
def test_sizes(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "70 gigs", "-3GiB", "1e9"])
def test_what_is_not_a_size_is_refused_with_an_example(text):
    with pytest.raises(InvalidDocument, match="70GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("800ms", 800_000_000), ("1.2s", 1_200_000_000), ("1.5 us", 1500), ("7NS", 7), ("2min", 120_000_000_000)],
)
def test_times(text, value):
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "ms", "800", "1 fortnight", "-3ms", "1e9s"])
def test_what_is_not_a_time_is_refused_with_an_example(text):
    with pytest.raises(InvalidDocument, match=r"--step-time .* is not a time.*800ms"):
        parse_duration(text)


def test_fixed_choices_keep_their_type():
    assert parse_choice("layers.*.reshard_after_forward=true").value is True
    assert parse_choice("mesh.shard=8").value == 8
    assert parse_choice("layers.0.activations=full").value == "full"
    with pytest.raises(InvalidDocument, match="KNOB=VALUE"):
        parse_choice("mesh.shard")


def test_dtypes_by_short_and_long_names():
    assert parse_dtype("bf16", option="--param-dtype") is DType.BFLOAT16
    assert parse_dtype("float32", option="--param-dtype") is DType.FLOAT32
    assert parse_dtype("none", option="--param-dtype") is None
    with pytest.raises(UnknownName, match="--param-dtype value 'bf17'"):
        parse_dtype("bf17", option="--param-dtype")


def test_choices_offered_are_those_of_the_contract():
    assert set(get_args(OptimizerChoice)) == set(OptimizerName)
    assert get_args(ImplementationChoice) == get_args(OptimizerGroup.model_fields["implementation"].annotation)


def test_options_make_the_request_that_they_describe(files, request_document):
    assert options(files).to_request() == request_document


def test_every_option_reaches_the_request(files):
    request = options(
        files,
        micro_batch=2,
        optimizer="sgd",
        optimizer_impl="fused",
        param_dtype="none",
        reduce_dtype="bf16",
        torch_version="2.12",
        budget="70GiB",
        fix=["mesh.shard=8"],
        step_time="1.5s",
        allow=["micro_batch=1,4", "reduce_dtype=fp32", "optimizer_implementation=for_loop", "micro_batch=8"],
        objective="peak-memory",
        gap=0.01,
        effort=5.0,
        time_limit=60.0,
        seed=7,
    ).to_request()
    workload, search = request.workload, request.search
    assert (workload.micro_batch, workload.torch_version) == (2, "2.12")
    assert (workload.precision.param_dtype, workload.precision.reduce_dtype) == (None, DType.BFLOAT16)
    assert workload.optimizer_groups == (OptimizerGroup(optimizer=OptimizerName.SGD, implementation="fused"),)
    assert request.limits == Limits(memory_bytes=70 * 2**30, step_time_ns=1_500_000_000)
    assert request.objective is Objective.PEAK_MEMORY
    assert (search.gap, search.deterministic_time, search.wall_clock_s, search.seed) == (0.01, 5.0, 60.0, 7)
    assert request.fixed[0].knob == "mesh.shard"
    assert (request.micro_batches, request.reduce_dtypes) == ((1, 4, 8), (DType.FLOAT32,))
    assert request.optimizer_implementations == ("for_loop",)


def test_atoms_are_rules_of_the_workload(files):
    workload = options(files, atom=["*.mlp.*=tile:128x128", "*=nf4-64x256"]).to_request().workload
    assert workload.atoms == (
        AtomRule(parameters="*.mlp.*", atom=TileAtom(num_rows=128, num_columns=128)),
        AtomRule(parameters="*", atom=FlatAtom(num_elements=64 * 256)),
    )
    with pytest.raises(InvalidDocument, match="give one number of rows"):
        options(files, atom=["*=rows:16-128"]).to_request()


def test_help_names_every_quantizer():
    assert QUANTIZERS.split(", ") == list(Quantizer)


def test_quantizers_are_of_the_workload(files):
    workload = options(files, quantizer=["mx", "*.mlp.* = fp8_blockwise"]).to_request().workload
    assert workload.quantizer_groups == (
        QuantizerGroup(quantizer=Quantizer.MX),
        QuantizerGroup(parameters="*.mlp.*", quantizer=Quantizer.FP8_BLOCKWISE),
    )
    with pytest.raises(UnknownName, match="nvfp4"):
        options(files, quantizer=["fp4"]).to_request()


def test_conditional_modules_are_of_the_workload(files):
    assert options(files).to_request().workload.conditional == ()
    assert options(files, conditional=["tower*"]).to_request().workload.conditional == ("tower*",)


def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest():
    request = RequestOptions(model="llama-3-8b", cluster="h100-8", sequence=512, global_batch=8, optimizer="muon")
    others, matrices = request.to_request().workload.optimizer_groups
    assert matrices == OptimizerGroup(optimizer=OptimizerName.MUON)
    assert others.parameters.split(",") == [
        "model.embed_tokens.weight",
        "model.layers.*.input_layernorm.weight",
        "model.layers.*.post_attention_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]


@pytest.mark.parametrize(
    ("allowed", "error", "said"),
    [
        ("mesh.shard=2", UnknownName, "--allow knob 'mesh.shard'"),
        ("micro_batch", InvalidDocument, "--allow 'micro_batch' lacks values"),
        ("micro_batch=two", InvalidDocument, "micro_batches[0]"),
        ("reduce_dtype=none", InvalidDocument, "reduce_dtypes[0]"),
        ("optimizer_implementation=slow", InvalidDocument, "optimizer_implementations[0]"),
    ],
)
def test_alternatives_that_there_are_not_are_named(files, allowed, error, said):
    with pytest.raises(error, match=re.escape(said)):
        options(files, allow=[allowed]).to_request()


def test_a_saved_request_is_read_back(files, request_document):
    assert RequestOptions(request=files / "request.json").to_request() == request_document


def test_a_saved_request_does_not_mix_with_options(files):
    with pytest.raises(InconsistentRequest, match=r"but MODEL, --seq was given"):
        RequestOptions(request=files / "request.json", model="m", sequence=1).to_request()


@pytest.mark.parametrize(("name", "said"), [("sequence", "--seq"), ("global_batch", "--global-batch")])
def test_what_is_missing_is_named(files, name, said):
    with pytest.raises(InconsistentRequest, match=f"{said} is missing"):
        options(files, **{name: None}).to_request()


@pytest.mark.parametrize(("name", "value", "said"), [("micro_batch", 0, "micro_batch"), ("gap", 1.5, "gap")])
def test_what_is_out_of_range_is_named(files, name, value, said):
    with pytest.raises(InvalidDocument, match=f"the command line is not a valid .*{said}"):
        options(files, **{name: value}).to_request()


def test_the_words_give_the_same_options_again(files):
    given = RequestOptions(
        model="a model.json", cluster="c.json", sequence=8, global_batch=4, fix=["a=1", "b=2"], budget="1GiB"
    )
    assert given.words() == ("'a model.json' c.json --seq 8 --global-batch 4 --budget 1GiB --fix a=1 --fix b=2")
    assert isinstance(options(files).to_request(), PlanRequest)
