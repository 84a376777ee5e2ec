"""Blocks replaced by their parts: which ones, where they and the shared tensors go, and what is refused."""

import pytest

from planner.program.parts import ExpandedBlock, expanded
from planner.schema import InconsistentRequest, ModelDescription
from tests.planner.split_model import split_model


@pytest.fixture(scope="module")
def model() -> ModelDescription:
    return split_model()


def paths(model: ModelDescription) -> list[str]:
    return [call.path for call in model.calls]


def shared_calls(model: ModelDescription) -> list[tuple[int, int]]:
    return [(tensor.first_call, tensor.last_call) for tensor in model.shared]


def test_nothing_inside_blocks_leaves_the_model_as_it_is(model: ModelDescription) -> None:
    result = expanded(model, [("layers.0",), ("layers.1", "head")], ["layers.2"])
    assert result.model is model
    assert result.blocks == ()


def test_a_unit_inside_replaces_the_call_of_its_block_alone(model: ModelDescription) -> None:
    result = expanded(model, [("layers.1.mlp",), ("layers.1",)], [])
    assert [(call.path, call.kind) for call in result.model.calls] == [
        ("layers.0", "block"),
        ("layers.1.attention", "attention"),
        ("layers.1", "glue"),
        ("layers.1.mlp", "mlp"),
        ("layers.2", "block"),
        ("head", "head"),
        ("(loss)", "loss"),
    ]
    assert result.blocks == (ExpandedBlock(path="layers.1", kind="block", first=1, last=3),)


def test_a_checkpointed_module_inside_replaces_its_block(model: ModelDescription) -> None:
    result = expanded(model, [], {"layers.0.attention"})
    assert paths(result.model)[:4] == ["layers.0.attention", "layers.0", "layers.0.mlp", "layers.1"]


def test_a_part_with_a_unit_inside_is_replaced_too_after_its_block(model: ModelDescription) -> None:
    result = expanded(model, [("layers.1.mlp.experts",), ("layers.2.mlp",)], [])
    assert paths(result.model) == [
        "layers.0",
        "layers.1.attention",
        "layers.1",
        "layers.1.mlp.gate",
        "layers.1.mlp.experts",
        "layers.2.attention",
        "layers.2",
        "layers.2.mlp",
        "head",
        "(loss)",
    ]
    assert result.blocks == (
        ExpandedBlock(path="layers.1", kind="block", first=1, last=4),
        ExpandedBlock(path="layers.1.mlp", kind="mlp", first=3, last=4),
        ExpandedBlock(path="layers.2", kind="block", first=5, last=7),
    )


def test_shared_tensors_count_from_the_first_part_to_the_last(model: ModelDescription) -> None:
    assert shared_calls(model) == [(0, 2), (1, 3)]
    assert shared_calls(expanded(model, [("layers.0.mlp",)], []).model) == [(0, 4), (3, 5)]
    assert shared_calls(expanded(model, [("layers.1.mlp",)], []).model) == [(0, 4), (1, 5)]
    assert shared_calls(expanded(model, [("layers.2.mlp.gate",)], []).model) == [(0, 5), (1, 6)]


def test_the_result_is_a_sound_description_of_the_same_model(model: ModelDescription) -> None:
    units = [(f"layers.{index}.mlp.{name}",) for index in range(3) for name in ("gate", "experts")]
    result = expanded(model, units, []).model
    assert ModelDescription.from_json(result.to_json()) == result
    assert result.fingerprint == model.fingerprint
    assert result.kinds == model.kinds
    for point in ((1, 8), (2, 16)):
        kept = [sum(m.kinds[call.kind].none.kept_bytes(*point) for call in m.calls) for m in (model, result)]
        assert kept[0] == kept[1]


@pytest.mark.parametrize("as_unit", [True, False])
@pytest.mark.parametrize(
    ("module", "named"),
    [
        ("layers.1.attention.q", "'layers.1' itself, or one of layers.1.attention, layers.1.mlp"),
        ("layers.1.dropout", "'layers.1' itself"),
        ("head.inner", "'head' itself"),
    ],
)
def test_modules_that_no_part_stands_for_are_refused(
    model: ModelDescription, module: str, named: str, as_unit: bool
) -> None:
    with pytest.raises(InconsistentRequest) as raised:
        expanded(model, [(module,)] if as_unit else [], [] if as_unit else [module])
    assert repr(module) in str(raised.value)
    assert named in str(raised.value)


def test_modules_outside_all_calls_are_left_to_others(model: ModelDescription) -> None:
    assert expanded(model, [("spare",), ("tower.spare",)], []).model is model
