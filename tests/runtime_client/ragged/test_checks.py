"""Layouts that cannot be applied are refused before the model is touched."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from planner.schema import Decisions, Layout
from runtime_client.apply import apply_decisions
from runtime_client.errors import ApplyError
from runtime_client.ragged import private
from runtime_client.ragged.errors import InvalidLayout, UnequalRanks, UnsupportedTorch
from tests.runtime_client.plans import decisions, unit


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2, bias=False)
        self.second = nn.Linear(2, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


FIRST = {"parameter": "first.weight", "offset_elements": 0, "num_elements": 6}
SECOND = {"parameter": "second.weight", "offset_elements": 6, "num_elements": 10}
LAYOUT = {"name": "a", "dtype": "float32", "shard_elements": 4, "entries": (FIRST, SECOND)}


def made(
    *layouts: dict[str, object], names: tuple[str, ...] = ("a",), alias: bool = False, **fields: object
) -> Decisions:
    found = tuple(Layout.model_validate(layout) for layout in layouts)
    root = unit("", layouts=names, alias_gathers=alias)
    return decisions((root,), shard=4, layouts=found, **fields)


def freeze(model: Pair) -> None:
    model.first.requires_grad_(False)


def halve(model: Pair) -> None:
    model.first.bfloat16()


def same(_model: Pair) -> None:
    pass


@pytest.mark.parametrize(
    ("chosen", "change", "error", "match"),
    [
        (made(names=("a",)), same, InvalidLayout, r"units\[0\]\.layouts: decisions\.layouts has no 'a'"),
        (made(LAYOUT, names=()), same, InvalidLayout, "no unit uses a"),
        (made(LAYOUT, LAYOUT), same, InvalidLayout, r"layouts\[1\]: 'a' is the name of an earlier layout"),
        (
            made(LAYOUT, names=("a", "a")),
            same,
            InvalidLayout,
            r"'a' is the layout of decisions\.units\[0\] already",
        ),
        (made(LAYOUT | {"entries": ()}), same, InvalidLayout, "has no entries"),
        (made(LAYOUT | {"entries": (FIRST,)}), same, InvalidLayout, "'second.weight' has a place in none of"),
        (made(LAYOUT | {"entries": (FIRST, SECOND, SECOND)}), same, InvalidLayout, "has a place already"),
        (
            made(LAYOUT | {"entries": (FIRST, SECOND | {"parameter": "third.weight"})}),
            same,
            InvalidLayout,
            r"the unit has no parameter 'third\.weight' \(nearest: first\.weight",
        ),
        (
            made(LAYOUT | {"entries": (FIRST, SECOND | {"num_elements": 9})}),
            same,
            InvalidLayout,
            "'second.weight' has 10 elements, its entry 9",
        ),
        (
            made(LAYOUT | {"entries": (FIRST, SECOND | {"offset_elements": 5})}),
            same,
            InvalidLayout,
            "'first.weight' and 'second.weight' overlap",
        ),
        (made(LAYOUT | {"dtype": "bfloat16"}), same, InvalidLayout, "'first.weight' is stored as float32"),
        (made(LAYOUT), freeze, InvalidLayout, "'second.weight' requires a gradient and 'first.weight' does not"),
        (
            made(LAYOUT, shard_dims=({"parameter": "second.weight", "dim": 1},)),
            same,
            ApplyError,
            "second.weight",
        ),
        (made(names=(), alias=True), same, InvalidLayout, r"units\[0\]\.alias_gathers: .* has 0 on 4\. Leave"),
        (
            made(
                LAYOUT | {"entries": (FIRST,)},
                LAYOUT | {"name": "b", "entries": (SECOND | {"offset_elements": 0},)},
                names=("a", "b"),
                alias=True,
            ),
            same,
            InvalidLayout,
            "where it has one layout on several ranks; this one has 2 on 4",
        ),
        (
            made(LAYOUT | {"entries": (FIRST, SECOND | {"offset_elements": 7})}),
            same,
            UnequalRanks,
            "ends at element 17, but 4 ranks of 4 elements hold 16.*more on some ranks cannot be applied",
        ),
        (
            decisions(
                (unit("first", layouts=("a",), mesh={"replicate": 2, "shard": 2}), unit("")),
                shard=4,
                layouts=(Layout.model_validate(LAYOUT | {"shard_elements": 2, "entries": (FIRST,)}),),
            ),
            same,
            UnequalRanks,
            "ends at element 6, but 2 ranks of 2 elements hold 4",
        ),
    ],
)
def test_refused(
    mesh: DeviceMesh, chosen: Decisions, change: Callable[[Pair], None], error: type[ApplyError], match: str
) -> None:
    model = Pair()
    change(model)
    before = dict(model.named_parameters())
    with pytest.raises(error, match=match):
        apply_decisions(model, chosen, mesh)
    assert list(before) == list(dict(model.named_parameters()))
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not isinstance(model, FSDPModule)


@pytest.mark.parametrize(
    ("version", "fits"), [("2.10.1", False), ("2.11.0", True), ("2.13.1+cpu", True), ("2.14.0", False)]
)
def test_torch_whose_internals_are_unknown(monkeypatch: pytest.MonkeyPatch, version: str, fits: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    if fits:
        private.check_torch()
    else:
        with pytest.raises(UnsupportedTorch, match=f"but {version} is installed"):
            private.check_torch()


def test_the_shards_are_the_planned_ones(mesh: DeviceMesh) -> None:
    """Rank 0 of four holds elements 0 to 3 of the buffer: four of the first matrix, none of the second."""
    model = Pair()
    with torch.no_grad():
        model.first.weight.copy_(torch.arange(6.0).view(2, 3))
    applied = apply_decisions(model, made(LAYOUT), mesh)
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "second.weight"]
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(2, 3), (5, 2)]
    assert model.first.weight.to_local().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert model.second.weight.to_local().numel() == 0
    assert model.first.weight.spread.sizes == (4, 2, 0, 0)
    assert model.second.weight.spread.sizes == (0, 2, 4, 4)
    assert [(piece.offset, piece.num_elements) for piece in applied.local_pieces("first.weight")] == [(0, 4)]
    assert applied.local_pieces("second.weight") == ()
    assert [type(child).__name__ for child in model.modules()] == ["FSDPPair", "Linear", "Linear"]


def test_whole_rows_keep_their_shape(mesh: DeviceMesh) -> None:
    """Shards of 6 elements: the first matrix whole, the second cut after three rows."""
    model = Pair()
    apply_decisions(model, made(LAYOUT | {"shard_elements": 6}), mesh)
    assert tuple(model.first.weight.to_local().shape) == (2, 3)
    assert model.second.weight.spread.sizes == (0, 6, 4, 0)
    assert tuple(model.second.weight.to_local().shape) == (0, 2)


def test_a_parameter_that_is_no_parameter(mesh: DeviceMesh) -> None:
    applied = apply_decisions(Pair(), made(LAYOUT), mesh)
    with pytest.raises(ApplyError, match=r"no parameter 'third\.weight'"):
        applied.local_pieces("third.weight")
