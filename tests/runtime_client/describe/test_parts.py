"""Parts of blocks against the blocks themselves, and against descriptions whose calls are the parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from benchmarks import small_models
from planner.program.parts import expanded
from planner.schema import Call, CallKind, CallRole, KeptBy, Liveness, ModelDescription, Work
from runtime_client.describe import TrainingExample, describe, pipeline
from runtime_client.describe.frontier import find_frontier
from runtime_client.describe.parts import TracedParts
from runtime_client.describe.split import SplitRule, split_frontier

POINTS = ((2, 32), (3, 16), (5, 64))
BUILDS: dict[str, Callable[[], TrainingExample]] = {
    "llama": small_models.llama,
    "llama_half_frozen": small_models.llama_half_frozen,
    "qwen3_moe": small_models.qwen3_moe,
    "gpt2": small_models.gpt2,
    "vit": small_models.vit,
    "t5": small_models.t5,
}
LLAMA = ["input_layernorm", "self_attn", "", "post_attention_layernorm", "mlp", ""]
CHILDREN = {
    "llama": {"model.layers.1": LLAMA},
    "llama_half_frozen": {"model.layers.0": LLAMA, "model.layers.3": LLAMA},
    "qwen3_moe": {"model.layers.1": LLAMA},
    "gpt2": {"transformer.h.1": ["ln_1", "attn", "", "ln_2", "mlp", ""]},
    "vit": {"vit.layers.1": ["layernorm_before", "attention", "", "layernorm_after", "mlp", ""]},
    "t5": {
        "encoder.block.1": ["layer.0", "layer.1"],
        "decoder.block.0": ["layer.0", "layer.1", "layer.2"],
        "decoder.block.1": ["layer.0", "layer.1", "layer.2"],
    },
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What one call adds to a step at one point: peaks of everything alive, and what stays."""

    path: str
    forward: int
    backward: int
    kept_after: int


@pytest.fixture(scope="module", autouse=True)
def no_selective_checkpointing() -> Iterator[None]:
    """It has nothing to do with parts and takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "with_selective", lambda subject, point_set, traces, plain: list(traces))
        yield


@cache
def described(name: str) -> ModelDescription:
    return describe(BUILDS[name], name=name, micro_batch=2, sequence=32)


@pytest.fixture(scope="module", params=BUILDS)
def named(request: pytest.FixtureRequest) -> tuple[str, ModelDescription]:
    return request.param, described(request.param)


def blocks(model: ModelDescription) -> list[Call]:
    return [call for call in model.calls if model.kinds[call.kind].role is CallRole.BLOCK]


def children(model: ModelDescription, call: Call) -> list[Call]:
    parts = model.kinds[call.kind].parts
    return [Call(path=f"{call.path}.{part.path}" if part.path else call.path, kind=part.kind) for part in parts]


def with_all_parts(model: ModelDescription) -> ModelDescription:
    """Every call replaced by its parts, and these by theirs."""
    modules = [
        inner.path
        for call in blocks(model)
        for part in children(model, call)
        for inner in (part, *children(model, part))
        if inner.path != call.path
    ]
    return expanded(model, [(module,) for module in modules], []).model


def curves(model: ModelDescription, micro_batch: int, sequence: int, *, checkpointed: bool = False) -> list[Curve]:
    """Each call with everything alive that docs/model.md counts, gradients of the call itself among it."""
    point = (micro_batch, sequence)
    unused = KeptBy.NONE if checkpointed else KeptBy.FULL
    sizes = {name: p.num_elements * model.param_dtype.itemsize_bytes for name, p in model.iter_parameters()}
    result, kept = [], 0
    for index, call in enumerate(model.calls):
        kind = model.kinds[call.kind]
        liveness: Liveness = kind.full if checkpointed and kind.full is not None else kind.none
        names = [f"{call.path}.{name}" if call.path else name for name in kind.gradient_order]
        gradients = [sizes[name] for name in names]
        held = sum(
            tensor.size_bytes.at(*point)
            for tensor in model.shared
            if tensor.kept_by is unused and tensor.first_call < index <= (tensor.held_until or 0)
        )
        forward = [kept + held + moment.live_bytes.at(*point) for moment in liveness.forward]
        backward = [
            kept + moment.live_bytes.at(*point) + sum(gradients[: moment.num_gradients])
            for moment in liveness.backward
        ]
        kept += liveness.kept_bytes(*point)
        kept += sum(
            tensor.size_bytes.at(*point)
            for tensor in model.shared
            if tensor.first_call == index and tensor.kept_by is not unused
        )
        result.append(
            Curve(
                path=call.path,
                forward=max(forward, default=0),
                backward=max(backward, default=0),
                kept_after=kept,
            )
        )
    return result


def gradient_bytes(model: ModelDescription, call: Call) -> int:
    sizes = {name: p.num_elements * model.param_dtype.itemsize_bytes for name, p in model.iter_parameters()}
    prefix = f"{call.path}." if call.path else ""
    return sum(sizes[prefix + name] for name in model.kinds[call.kind].gradient_order)


def block_curves(model: ModelDescription, whole: ModelDescription, micro_batch: int, sequence: int) -> list[Curve]:
    """Curves of the blocks of `whole` from the parts of `model`, gradients of later parts counted in backward."""
    by_block: dict[str, list[tuple[Call, Curve]]] = {call.path: [] for call in blocks(whole)}
    for call, curve in zip(model.calls, curves(model, micro_batch, sequence), strict=True):
        for path, inside in by_block.items():
            if call.path == path or call.path.startswith(f"{path}."):
                inside.append((call, curve))
    result = []
    for path, inside in by_block.items():
        later, backward = 0, 0
        for call, curve in reversed(inside):
            backward = max(backward, curve.backward + later if curve.backward else 0)
            later += gradient_bytes(model, call)
        forward = max(curve.forward for _, curve in inside)
        kept_after = inside[-1][1].kept_after
        result.append(Curve(path=path, forward=forward, backward=backward, kept_after=kept_after))
    return result


def test_children_with_parameters_and_the_code_between_them_are_parts(named: tuple[str, ModelDescription]) -> None:
    name, model = named
    kinds = {call.path: model.kinds[call.kind] for call in model.calls}
    for path, expected in CHILDREN[name].items():
        assert [part.path for part in kinds[path].parts] == expected
    assert all(model.kinds[call.kind].parts for call in blocks(model))


def test_mixtures_of_experts_are_split_once_more() -> None:
    model = described("qwen3_moe")
    (mlp,) = {part.kind for part in model.kinds["block"].parts if part.path == "mlp"}
    assert [part.path for part in model.kinds[mlp].parts] == ["gate", "experts"]
    paths = [call.path for call in with_all_parts(model).calls]
    start = paths.index("model.layers.2.input_layernorm")
    assert paths[start : start + 7] == [
        "model.layers.2.input_layernorm",
        "model.layers.2.self_attn",
        "model.layers.2",
        "model.layers.2.post_attention_layernorm",
        "model.layers.2.mlp.gate",
        "model.layers.2.mlp.experts",
        "model.layers.2",
    ]


def test_parts_keep_together_what_the_block_keeps(named: tuple[str, ModelDescription]) -> None:
    _, model = named
    for kind in model.kinds.values():
        for point in POINTS if kind.parts else ():
            parts = [model.kinds[part.kind].none.kept_bytes(*point) for part in kind.parts]
            assert sum(parts) == kind.none.kept_bytes(*point)


def test_parts_do_together_what_the_block_does(named: tuple[str, ModelDescription]) -> None:
    _, model = named
    for kind in model.kinds.values():
        if kind.parts:
            parts = [model.kinds[part.kind] for part in kind.parts]
            assert sum_of_work([kind], "forward") == sum_of_work(parts, "forward")
            assert sum_of_work([kind], "backward") == sum_of_work(parts, "backward")


def sum_of_work(kinds: Sequence[CallKind], step: str) -> list[tuple[int, ...]]:
    works: list[Work] = [getattr(region, step) for kind in kinds for region in kind.regions]
    return [
        tuple(sum(values) for values in zip(*(_values(work, point) for work in works), strict=True))
        for point in POINTS
    ]


def _values(work: Work, point: tuple[int, int]) -> tuple[int, int, int]:
    return work.flops.at(*point), work.moved_bytes.at(*point), work.num_kernels


def test_gradients_complete_in_the_same_order(named: tuple[str, ModelDescription]) -> None:
    _, model = named
    for kind in model.kinds.values():
        if kind.parts:
            names = [
                f"{part.path}.{name}" if part.path else name
                for part in reversed(kind.parts)
                for name in model.kinds[part.kind].gradient_order
            ]
            assert tuple(names) == kind.gradient_order


@pytest.mark.parametrize("point", POINTS)
def test_peaks_of_parts_are_those_of_the_block(named: tuple[str, ModelDescription], point: tuple[int, int]) -> None:
    _, model = named
    expected = {curve.path: curve for curve in curves(model, *point)}
    found = block_curves(with_all_parts(model), model, *point)
    assert found == [expected[call.path] for call in blocks(model)]


def test_a_block_leaves_alive_what_its_last_part_leaves(named: tuple[str, ModelDescription]) -> None:
    """In backward the last part to run is the first one."""
    _, model = named
    for call in blocks(model):
        kind = model.kinds[call.kind]
        first, last = (model.kinds[kind.parts[place].kind] for place in (0, -1))
        for point in POINTS:
            assert last.none.after_forward.at(*point) == kind.none.after_forward.at(*point) > 0
            assert first.none.after_backward.at(*point) == kind.none.after_backward.at(*point)


def test_code_whose_backward_does_nothing_leaves_what_it_found() -> None:
    model = described("gpt2")
    kinds = {part.path: model.kinds[part.kind] for part in model.kinds["block"].parts}
    added = kinds[""]
    assert not any(region.backward.num_kernels for region in added.regions)
    assert added.none.after_backward == model.kinds["block"].none.after_backward
    assert added.none.after_backward


def test_no_moment_of_a_part_is_negative(named: tuple[str, ModelDescription]) -> None:
    _, model = named
    for kind in model.kinds.values():
        for liveness in filter(None, (kind.none, kind.full)):
            moments = (*liveness.forward, *liveness.backward)
            assert not any(moment.live_bytes.is_negative_at(2, 32) for moment in moments)


def test_modules_can_be_checkpointed_alone_and_code_between_them_cannot(
    named: tuple[str, ModelDescription],
) -> None:
    _, model = named
    for kind in model.kinds.values():
        for part in kind.parts:
            assert (model.kinds[part.kind].full is not None) == bool(part.path)


def test_checkpointing_recomputes_the_parts_up_to_the_last_that_saves(named: tuple[str, ModelDescription]) -> None:
    """Early stop leaves out what comes after the last saved tensor of the block."""
    _, model = named
    for kind in model.kinds.values():
        if not kind.parts or not kind.output_requires_grad:
            continue
        parts = [model.kinds[part.kind] for part in kind.parts]
        last = max(index for index, part in enumerate(parts) if part.none.saved)
        forward = [work[2] for part in parts[:last] for work in sum_of_work([part], "forward")[:1]]
        recomputed = sum_of_work([parts[last]], "recompute")[0][2]
        assert sum(forward) + recomputed == sum_of_work([kind], "recompute")[0][2]


def test_frozen_halves_carry_no_gradients_in_their_parts() -> None:
    model = described("llama_half_frozen")
    kinds = {call.path: model.kinds[call.kind] for call in with_all_parts(model).calls}
    frozen, first_trained = kinds["model.layers.0.mlp"], kinds["model.layers.2.input_layernorm"]
    assert not frozen.output_requires_grad
    assert not frozen.none.saved
    assert frozen.gradient_order == ()
    assert not first_trained.input_requires_grad
    assert first_trained.output_requires_grad
    assert kinds["model.layers.2.mlp"].input_requires_grad


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_parts_are_what_describe_gives_when_they_are_the_calls(name: str) -> None:
    found = with_all_parts(described(name))
    expected = described_by_children(name)
    for micro_batch, sequence in POINTS:
        for checkpointed in (False, True):
            one, other = (
                curves(model, micro_batch, sequence, checkpointed=checkpointed) for model in (found, expected)
            )
            assert one == other
    for call, reference in zip(found.calls, expected.calls, strict=True):
        assert facts(found.kinds[call.kind]) == facts(expected.kinds[reference.kind])


def described_by_children(name: str) -> ModelDescription:
    """A description that takes the children of blocks for its blocks: it divides nothing among parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pipeline, "find_frontier", lambda root: split_frontier(find_frontier(root), SplitRule(), 0).frontier
        )
        patch.setattr(pipeline, "trace_parts", lambda *_: TracedParts(calls={}, kinds={}))
        return describe(BUILDS[name], name=name, micro_batch=2, sequence=32)


def facts(kind: CallKind) -> tuple[object, ...]:
    forward = [(region.module, region.kind, region.forward, region.host_sync) for region in kind.regions]
    backward = [region.backward for region in kind.regions]
    return forward, backward, kind.gradient_order, kind.input_requires_grad, kind.output_requires_grad, kind.kernels
