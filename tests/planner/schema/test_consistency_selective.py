"""What selective checkpointing in a model description must agree with."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from planner.schema import (
    Call,
    CallKind,
    CallRole,
    Liveness,
    ModelDescription,
    Moment,
    Polynomial,
    Region,
    SavedTensor,
    SelectiveCheckpoint,
    Work,
)

LIVENESS = Liveness(saved=(SavedTensor(size_bytes=Polynomial(bs=2)),))
ENTRY = SelectiveCheckpoint(
    saved_ops=("aten.addmm.default", "aten.mm.default"), liveness=LIVENESS, recompute=(Work(), Work())
)
BLOCK = CallKind(
    role=CallRole.BLOCK, regions=(Region(), Region()), none=LIVENESS, full=LIVENESS, selective=(ENTRY,)
)


def described(block: CallKind) -> ModelDescription:
    return ModelDescription(
        name="model",
        parameter_sets={},
        modules=(),
        kinds={"block": block},
        calls=(Call(path="layers.0", kind="block"),),
        tree_sha256="sha256:" + "0" * 64,
    )


def with_entry(**changes: object) -> CallKind:
    return BLOCK.model_copy(update={"selective": (ENTRY.model_copy(update=changes),)})


def test_sound_entries() -> None:
    model = described(BLOCK)
    assert ModelDescription.from_json(model.to_json()) == model
    assert described(BLOCK.model_copy(update={"selective": ()})).content_hash() != model.content_hash()


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (lambda: BLOCK.model_copy(update={"full": None}), r"selective\[0\]: the kind has no `full`"),
        (lambda: with_entry(saved_ops=("b", "a")), r"selective\[0\]\.saved_ops: sort"),
        (lambda: with_entry(saved_ops=("a", "a")), "name each once"),
        (lambda: BLOCK.model_copy(update={"selective": (ENTRY, ENTRY)}), r"selective\[1\]\.saved_ops: .*already"),
        (lambda: with_entry(recompute=(Work(),)), r"selective\[0\]\.recompute: 1 entries, .* 2 regions"),
        (
            lambda: with_entry(liveness=Liveness(backward=(Moment(region=2, live_bytes=Polynomial()),))),
            r"selective\[0\]\.liveness\.backward\[0\]\.region: no region 2",
        ),
        (
            lambda: with_entry(liveness=Liveness(backward=(Moment(num_gradients=1, live_bytes=Polynomial()),))),
            r"selective\[0\]\.liveness\.backward\[0\]\.num_gradients: 1",
        ),
    ],
)
def test_unsound_entries(block: Callable[[], CallKind], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        described(block())


def test_an_entry_names_operations() -> None:
    with pytest.raises(ValidationError, match="saved_ops"):
        SelectiveCheckpoint(saved_ops=(), liveness=LIVENESS, recompute=())
