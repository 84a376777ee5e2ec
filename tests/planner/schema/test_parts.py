"""Parts of a kind must exist, end, and do and keep together what the kind does and keeps."""

import pytest
from pydantic import ValidationError

from planner.schema import LOSS_PATH, Call, CallKind, Liveness, ModelDescription, Polynomial, SavedTensor
from tests.planner.split_model import default_kinds, split_model

KINDS = default_kinds()


def with_parts(kind: str, *parts: tuple[str, str]) -> CallKind:
    calls = tuple(Call(path=path, kind=part) for path, part in parts)
    return KINDS[kind].model_copy(update={"parts": calls})


def with_kernels(kind: str, step: str, more: int) -> CallKind:
    (region,) = KINDS[kind].regions
    work = getattr(region, step)
    work = work.model_copy(update={"num_kernels": work.num_kernels + more})
    return KINDS[kind].model_copy(update={"regions": (region.model_copy(update={step: work}),)})


def keeping(kind: str, size_bytes: Polynomial) -> CallKind:
    none = KINDS[kind].none.model_copy(update={"saved": (SavedTensor(size_bytes=size_bytes),)})
    return KINDS[kind].model_copy(update={"none": none})


def test_sound_parts_survive_a_round_trip() -> None:
    model = split_model()
    assert ModelDescription.from_json(model.to_json()).kinds["block"].parts == model.kinds["block"].parts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"block": with_parts("block", ("attention", "attention"), ("", "glue"), ("mlp", "none"))},
            "kinds.block.parts[2].kind: no kind 'none'",
        ),
        (
            {"block": with_parts("block", (LOSS_PATH, "loss"))},
            "kinds.block.parts[0].path: the loss is a call of the model",
        ),
        (
            {"block": with_parts("block", ("attention", "attention"), ("", "mlp"))},
            "kinds.block.parts[1].kind: the code of a call between its children has no parts",
        ),
        (
            {"mlp": with_parts("mlp", ("gate", "block"))},
            "kinds.block.parts: the kind is a part of itself",
        ),
        (
            {"block": with_parts("block", ("attention", "attention"), ("", "glue"), ("feed", "mlp"))},
            "kinds.block.parts: their gradients are not those of the kind (feed.experts.w, feed.gate.w, "
            "mlp.experts.w, mlp.gate.w)",
        ),
        (
            {"block": with_parts("block", ("attention", "attention"), ("mlp", "mlp"))},
            "kinds.block.parts: together they have 33 in term 'one' of none.saved, the kind has 35",
        ),
        (
            {"glue": with_kernels("glue", "forward", 1)},
            "kinds.block.parts: together they have 10 in term 'one' of forward kernels, the kind has 9",
        ),
        (
            {"experts": with_kernels("experts", "backward", -1)},
            "kinds.mlp.parts: together they have 7 in term 'one' of backward kernels, the kind has 8",
        ),
        (
            {"gate": keeping("gate", Polynomial(one=3, bs=2))},
            "kinds.mlp.parts: together they have 2 in term 'bs' of none.saved, the kind has 0",
        ),
    ],
)
def test_unsound_parts_are_refused_with_their_place(changes: dict[str, CallKind], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        split_model(**changes)
    assert message in str(raised.value)


def test_sums_may_differ_by_rounding() -> None:
    third = 1 / 3
    nothing = {"forward": (), "backward": ()}
    saved = tuple(SavedTensor(size_bytes=Polynomial(bs=third)) for _ in range(3))
    mlp = KINDS["mlp"].model_copy(
        update={"none": Liveness(saved=(SavedTensor(size_bytes=Polynomial(bs=0.1 + 0.2 + 1)),), **nothing)}
    )
    gate = KINDS["gate"].model_copy(update={"none": Liveness(saved=saved, **nothing)})
    experts = KINDS["experts"].model_copy(
        update={"none": Liveness(saved=(SavedTensor(size_bytes=Polynomial(bs=0.3)),), **nothing)}
    )
    block = KINDS["block"].model_copy(
        update={"none": Liveness(saved=(SavedTensor(size_bytes=Polynomial(one=12, bs=1.3)),), **nothing)}
    )
    model = split_model(block=block, mlp=mlp, gate=gate, experts=experts)
    assert model.kinds["block"].none.kept_bytes(1, 10) == 25
