"""Bad requests: each has its own code and message, and no request whatever ends in another exception."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from planner.plan import make_plan
from planner.schema import DType, InvalidDocument, PlanBody, PlanRequest, ShardwrightError
from tests.planner.factories import MIXED_PRECISION, CallSpec, tiny_cluster, tiny_model, tiny_request

Path = tuple[str | int, ...]
DROPPED = object()
BLOCK = CallSpec(shapes=((8, 4),), saved=60, forward_live=(90,), backward_live=((90, 1),), full_saved=10)


def plan_of(document: object) -> PlanBody:
    """Plan a request document as it comes over the wire."""
    return make_plan(PlanRequest.from_json(json.dumps(document), source="request")).body


def request_document() -> dict[str, Any]:
    """Three blocks on four devices of two nodes; every field is written out."""
    model = tiny_model(3, block=BLOCK)
    request = tiny_request(
        model, tiny_cluster(4, devices_per_node=2), precision=MIXED_PRECISION, num_micro_batches=2
    )
    document: dict[str, Any] = json.loads(request.model_dump_json())
    document["search"] |= {"deterministic_time": 0.5, "gap": 0.05}
    return document


BASE = request_document()


def changed(*changes: tuple[str, object]) -> dict[str, Any]:
    """The document with values replaced or dropped at dotted paths."""
    document = copy.deepcopy(BASE)
    for path, value in changes:
        _put(document, tuple(int(step) if step.isdigit() else step for step in path.split(".")), value)
    return document


def _put(document: Any, path: Path, value: object) -> None:
    *parents, last = path
    for step in parents:
        document = document[step]
    if value is DROPPED:
        del document[last]
    else:
        document[last] = value


CALLS, MODULES = BASE["model"]["calls"], BASE["model"]["modules"]
COLLECTIVES = BASE["profile"]["collectives"]
PARAMETER = "model.parameter_sets.block.0"
LIVENESS = "model.kinds.block.none"
GROUP = "cluster.node_groups.0"

REFUSED = {
    "unknown device": ([(f"{GROUP}.device", "H900")], "unknown_name", "unknown device 'H900'; known: A10"),
    "unknown link": ([(f"{GROUP}.intra_node", "warp")], "unknown_name", "unknown link 'warp'; known: ethernet-1"),
    "unknown link between nodes": ([("cluster.inter_node", "warp")], "unknown_name", "unknown link 'warp'"),
    "no link between nodes": (
        [("cluster.inter_node", None)],
        "inconsistent_request",
        "cluster.inter_node is missing",
    ),
    "a negative size": ([(f"{PARAMETER}.shape", [-8])], "invalid_document", "parameter_sets.block[0].shape[0]"),
    "a misspelt dtype": ([(f"{PARAMETER}.dtype", "bloat16")], "invalid_document", "parameter_sets.block[0].dtype"),
    "a name twice": (
        [("model.parameter_sets.block", BASE["model"]["parameter_sets"]["block"] * 2)],
        "invalid_document",
        "'layers.0.w0' is listed twice",
    ),
    "a dangling tie": (
        [("model.parameter_sets.head.0.tied_to", "nothing")],
        "invalid_document",
        "tied to 'nothing', which does not exist",
    ),
    "a tie to itself": (
        [("model.parameter_sets.head.0.tied_to", "head.w0")],
        "invalid_document",
        "not registered before it",
    ),
    "a tie to a later one": (
        [("model.parameter_sets.embedding.0.tied_to", "head.w0")],
        "invalid_document",
        "not registered before it",
    ),
    "a tied dtype": (
        [("model.parameter_sets.head.0.tied_to", "embed.w0"), ("model.parameter_sets.head.0.dtype", "bfloat16")],
        "invalid_document",
        "differs in dtype",
    ),
    "a tied shape": (
        [("model.parameter_sets.norm.0.tied_to", "embed.w0")],
        "invalid_document",
        "differs in shape",
    ),
    "a chain of ties": (
        [
            (
                "model.parameter_sets.norm.0",
                {**BASE["model"]["parameter_sets"]["embedding"][0], "tied_to": "embed.w0"},
            ),
            ("model.parameter_sets.head.0.tied_to", "norm.w0"),
        ],
        "invalid_document",
        "is itself tied to 'embed.w0'",
    ),
    "too many elements": ([(f"{PARAMETER}.shape", [2**52, 2**52])], "invalid_document", "2^53 - 1 bytes"),
    "no elements": ([(f"{PARAMETER}.shape", [0, 4])], "unsupported_field", "layers.0.w0.shape"),
    "a scalar": ([(f"{PARAMETER}.shape", [])], "inconsistent_request", "fully_shard refuses scalars"),
    "trainable integers": ([(f"{PARAMETER}.dtype", "int8")], "unsupported_field", "int8 cannot be trained"),
    "two storage dtypes in a unit": (
        [("model.parameter_sets.norm.0.dtype", "bfloat16")],
        "inconsistent_request",
        "stored in bfloat16 and float32",
    ),
    "an optimizer group by name": (
        [(f"{PARAMETER}.optimizer_group", "muon")],
        "unsupported_field",
        "layers.0.w0.optimizer_group",
    ),
    "a conditional module that is none": (
        [("workload.conditional", ["tower.*"])],
        "inconsistent_request",
        "workload.conditional[0]: 'tower.*' matches no module with parameters",
    ),
    "conditional modules in an older torch": (
        [("workload.conditional", ["layers.0"]), ("workload.torch_version", "2.12")],
        "unsupported_field",
        "use torch 2.13, or run these modules on a dummy input",
    ),
    "no calls": ([("model.calls", [])], "inconsistent_request", "model.calls: nothing runs"),
    "nothing but a loss": ([("model.calls", CALLS[-1:])], "inconsistent_request", "model.calls: nothing runs"),
    "no parameters": (
        [
            ("model.modules", []),
            (f"{LIVENESS}.backward", []),
            ("model.kinds.block.full", None),
            *((f"model.kinds.{kind}.gradient_order", []) for kind in BASE["model"]["kinds"]),
        ],
        "inconsistent_request",
        "no parameters",
    ),
    "a loss before the end": ([("model.calls", CALLS[::-1])], "invalid_document", "the loss must be the last call"),
    "a cast amid the calls": (
        [("model.calls.0.path", "(output)")],
        "invalid_document",
        "calls[0].path: nothing but the loss may follow the cast of the output",
    ),
    "another type of outputs than described": (
        [("workload.precision.output_dtype", "float32")],
        "inconsistent_request",
        "workload.precision.output_dtype is float32, but the loss was described with model.output_dtype None",
    ),
    "a gradient of nothing": (
        [("model.kinds.block.gradient_order", ["w7"])],
        "invalid_document",
        "kinds.block.gradient_order[0]: calls[1] ('layers.0') has no parameter 'w7'",
    ),
    "a gradient twice": (
        [("model.kinds.block.gradient_order", ["w0", "w0"])],
        "invalid_document",
        "lists a parameter twice",
    ),
    "too many gradients": (
        [(f"{LIVENESS}.backward.0.num_gradients", 9)],
        "invalid_document",
        "kinds.block.none.backward[0].num_gradients: 9",
    ),
    "a region that is not there": (
        [(f"{LIVENESS}.saved.0.region", 9)],
        "invalid_document",
        "kinds.block.none.saved[0].region: no region 9",
    ),
    "a size below zero": (
        [(f"{LIVENESS}.saved.0.size_bytes", {"one": 10, "bs": -2})],
        "inconsistent_request",
        "model.kinds.block.none.saved[0].size_bytes is below 0 at micro-batch 1 and sequence 8",
    ),
    "a coefficient without end": (
        [(f"{LIVENESS}.saved.0.size_bytes", {"bss": 1e300})],
        "invalid_document",
        "saved[0].size_bytes.bss",
    ),
    "a shared tensor of no call": (
        [("model.shared", [{"size_bytes": {"one": 1}, "first_call": 2, "last_call": 99}])],
        "invalid_document",
        "shared[0]: calls 2..99 do not exist",
    ),
    "a shared tensor that is held no longer than its first call": (
        [("model.shared", [{"size_bytes": {"one": 1}, "first_call": 1, "last_call": 2, "held_until": 1}])],
        "invalid_document",
        "shared[0].held_until: 1 is no call after the first, 1",
    ),
    "an input that is held no longer than its call": (
        [("model.held_inputs", [{"size_bytes": {"one": 1}, "call": 1, "held_until": 1}])],
        "invalid_document",
        "held_inputs[0]: 1 is no call after call 1",
    ),
    "no micro-batch": ([("workload.micro_batch", 0)], "invalid_document", "workload.micro_batch"),
    "no sequence": ([("workload.sequence", 0)], "invalid_document", "workload.sequence"),
    "an integer in quotes": ([("workload.sequence", "8")], "invalid_document", "workload.sequence"),
    "integer reduction": ([("workload.precision.reduce_dtype", "int8")], "unsupported_field", "reduce_dtype"),
    "float8 parameters": (
        [("workload.precision.param_dtype", "float8_e4m3fn")],
        "unsupported_field",
        "workload.precision.param_dtype",
    ),
    "integer moments": (
        [("workload.optimizer_groups.0.state_dtype", "int8")],
        "unsupported_field",
        "workload.optimizer_groups[0].state_dtype",
    ),
    "parameters in no group": (
        [("workload.optimizer_groups.0.parameters", "encoder.*")],
        "inconsistent_request",
        "'embed.w0' is in no group",
    ),
    "all lost to fragmentation": (
        [("cluster.reserve.fragmentation", 1.0)],
        "inconsistent_request",
        "fragmentation",
    ),
    "nothing left to other jobs": ([("cluster.tenancy.exclusive", False)], "inconsistent_request", "exclusive"),
    "more devices than there are": (
        [(f"{GROUP}.num_nodes", 2**40), ("workload.global_batch", 2**41)],
        "inconsistent_request",
        "can be planned",
    ),
    "a step without end": (
        [("profile.launch_ns", 2**53 - 1)],
        "inconsistent_request",
        "the largest part is",
    ),
    "a call without end": (
        [("profile.calls.1.forward_ns", 2**53 - 1)],
        "implausible_profile",
        "profile.calls[1].forward_ns is 9,007,199,254,740,991 ns",
    ),
    "a link without end": (
        [
            (f"profile.collectives.{i}.points", [{"size_bytes": 2**52, "duration_ns": 1}])
            for i in range(len(COLLECTIVES))
        ],
        "implausible_profile",
        "profile.collectives[0].points[0].duration_ns is 1 ns for all_gather",
    ),
    "a curve without time": (
        [
            (f"profile.collectives.{i}.points", [{"size_bytes": 8, "duration_ns": 0}])
            for i in range(len(COLLECTIVES))
        ],
        "inconsistent_request",
        "no point with size_bytes and duration_ns above 0",
    ),
    "a curve without points": (
        [("profile.collectives.0.points", [])],
        "invalid_document",
        "profile.collectives[0].points",
    ),
    "fixed choices that contradict": (
        [("fixed", [{"knob": "layers.*.activation", "value": value} for value in ("full", "none")])],
        "inconsistent_request",
        "fixed[1]: layers.*.activation = 'none' contradicts an earlier choice",
    ),
    "meshes that contradict": (
        [("fixed", [{"knob": "mesh.shard", "value": 4}, {"knob": "mesh.replicate", "value": 2}])],
        "inconsistent_request",
        "no mesh and grouping is left",
    ),
    "a flag for a number": (
        [("fixed", [{"knob": "forward_prefetch", "value": True}])],
        "inconsistent_request",
        "possible values: 0, 1, fitted:0, 2",
    ),
    "a number without exact form": (
        [("fixed", [{"knob": "mesh.shard", "value": 2**60}])],
        "invalid_document",
        "fixed[0].value",
    ),
    "a fixed knob that the client lacks": (
        [("client_features", []), ("fixed", [{"knob": "layers.*.activation", "value": "full"}])],
        "inconsistent_request",
        "possible values: none",
    ),
    "a warm start": ([("warm_start", "sha256:" + "0" * 64)], "unsupported_field", "warm_start"),
}


@pytest.mark.parametrize(("changes", "code", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_each_mistake_has_its_message(changes: list[tuple[str, object]], code: str, message: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        plan_of(changed(*changes))
    assert caught.value.code == code
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 10_000, '{"model": NaN}', '{"a": ' + "9" * 50_000 + "}", "null", json.dumps(BASE)[:-100]],
    ids=["empty", "cut", "deep", "nan", "digits", "null", "truncated"],
)
def test_text_that_is_no_request(text: str) -> None:
    with pytest.raises(InvalidDocument, match=r"request is not a valid request"):
        PlanRequest.from_json(text, source="request")


def test_a_fixed_prefetch_leaves_out_the_meshes_that_have_none() -> None:
    body = plan_of(changed(("fixed", [{"knob": "forward_prefetch", "value": 2}])))
    assert body.decisions is not None
    assert body.decisions.mesh.shard > 1
    assert len(body.decisions.units[0].forward_prefetch) == 2


def test_globs_reach_the_knobs_of_the_whole_model() -> None:
    body = plan_of(changed(("fixed", [{"knob": "mesh.*", "value": 2}, {"knob": "units.*", "value": True}])))
    assert body.decisions is not None
    assert (body.decisions.mesh.replicate, body.decisions.mesh.shard) == (2, 2)
    assert {unit.modules[0] for unit in body.decisions.units} >= {"embed", "norm"}


def test_blocks_that_share_a_parameter_with_others_stay_in_the_root() -> None:
    document = changed(
        ("model.parameter_sets.tied", [{**BASE["model"]["parameter_sets"]["block"][0], "tied_to": "layers.0.w0"}]),
        ("model.modules.2.parameters", "tied"),
    )
    body = plan_of(document)
    assert body.decisions is not None
    modules = {module for unit in body.decisions.units for module in unit.modules}
    assert "layers.2" in modules
    assert modules.isdisjoint({"layers.0", "layers.1"})


def test_reserves_above_the_device_memory_are_named() -> None:
    document = changed((f"{GROUP}.device_memory_bytes", 1000), ("profile.context_bytes", 5000))
    infeasibility = plan_of(document).infeasibility
    assert infeasibility is not None
    assert "the reserves take all of the device's 1000 bytes (context 5000 bytes)" in infeasibility.reason


def test_the_wall_clock_ends_the_search_without_claiming_a_proof() -> None:
    body = plan_of(changed(("search.wall_clock_s", 1e-9)))
    assert body.certificate is not None
    assert body.certificate.wall_clock_struck
    assert body.certificate.status == "bounded"
    assert body.certificate.lower_bound < body.certificate.value


def test_measurements_that_are_not_used_are_noted() -> None:
    calls = [{**call, "sequence": 9} for call in BASE["profile"]["calls"]]
    body = plan_of(changed(("profile.calls", [*calls, {**calls[0], "kind": "colour"}])))
    assert any("the model lacks, which were not used: colour" in note for note in body.reasons.notes)
    assert any("only at other sizes than micro-batch 1 and sequence 8" in note for note in body.reasons.notes)


def _paths(value: object, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in items:
        yield from _paths(child, (*path, step))


PATHS = list(_paths(BASE))
NUMBERS = (-1, 0, 1, 2, 3, 7, 2**31, 2**53 - 1, 2**53, 10**30, -0.5, 0.0, 0.5, 1.0, 1e-300, 1e300)
WORDS = ("", "*", "embed", "layers.0", "layers.0.w0", "(loss)", "block", "cpu", *DType)
VALUES = st.sampled_from([*NUMBERS, *WORDS, None, True, False, [], {}, [1], {"one": 5}, {"bss": -(2**40)}])
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(PATHS),
        st.one_of(VALUES, VALUES, st.just(DROPPED), st.sampled_from(PATHS).map(lambda path: ("copy", path))),
    ),
    min_size=1,
    max_size=3,
)


def _at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


@settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(MUTATIONS)
def test_no_request_ends_in_another_exception(mutations: list[tuple[Path, object]]) -> None:
    document = copy.deepcopy(BASE)
    for path, value in mutations:
        match value:
            case ("copy", source):
                value = copy.deepcopy(_at(BASE, source))
        try:
            _put(document, path, value)
        except (KeyError, IndexError, TypeError):
            continue
    try:
        body = plan_of(document)
    except ShardwrightError as error:
        event(error.code)
        return
    event(body.outcome)
    assert (body.decisions is None) == (body.outcome == "infeasible")
