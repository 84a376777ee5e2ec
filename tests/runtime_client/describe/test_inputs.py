"""Inputs of the model: held by the training loop, and cast where they float. Its outputs, cast likewise."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.schema import CallRole, DType, ModelDescription, Polynomial
from runtime_client.describe import TrainingExample, describe

WIDTH = 16
POINT = (3, 32)
FLOATS = POINT[0] * POINT[1] * WIDTH


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        hidden = self.stem(features)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Headed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        output: Tensor = self.head(super().forward(features, labels))
        return output


class PositionBias(nn.Module):
    """A bias of each pair of positions that all sequences share, and that autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(features.shape[1], dtype=self.slope.dtype)
        bias = (self.slope * (positions - positions[:, None])).sigmoid()
        return bias.mean(0) @ features


def described(
    model: type[nn.Module], param_dtype: DType | None, output_dtype: DType | None = None
) -> ModelDescription:
    def inputs(micro_batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        labels = torch.zeros(micro_batch, sequence, dtype=torch.long)
        return (torch.zeros(micro_batch, sequence, WIDTH), labels), {}

    return describe(
        lambda: TrainingExample(model=model(), inputs=inputs, loss=_loss),
        name="tower",
        micro_batch=POINT[0],
        sequence=POINT[1],
        param_dtype=param_dtype,
        output_dtype=output_dtype,
    )


def _loss(output: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    assert args[0].dtype is torch.float32, "the loss reads what the loop holds, not what the module got"
    return nn.functional.cross_entropy(output.flatten(0, 1).float(), args[1].flatten())


def test_inputs_count_in_their_own_types() -> None:
    for param_dtype in (DType.BFLOAT16, None):
        assert described(Tower, param_dtype).inputs_bytes == Polynomial(bs=4 * WIDTH + 8)


def test_the_cast_of_a_floating_input_is_an_activation_that_the_first_layer_saves() -> None:
    model = described(Tower, DType.BFLOAT16)
    cast, stem = (model.kinds[call.kind] for call in model.calls[:2])
    assert [call.path for call in model.calls[:2]] == ["", "stem"]
    assert cast.role is CallRole.GLUE
    assert max(moment.live_bytes.at(*POINT) for moment in cast.none.forward) == 2 * FLOATS
    assert [tensor.size_bytes.at(*POINT) for tensor in stem.none.saved if tensor.from_input] == [2 * FLOATS]
    assert not cast.output_requires_grad
    assert not stem.input_requires_grad


def test_an_input_that_needs_no_cast_is_no_activation() -> None:
    model = described(Tower, None)
    assert model.calls[0].path == "stem"
    assert not model.kinds["stem"].none.saved


def test_the_cast_of_the_output_is_a_call_before_the_loss() -> None:
    # The last ReLU keeps what it makes, 2 B a number; the cast makes 4 B of each, in backward 2 B of 4 B. The loss
    # and its gradient are alive then.
    model = described(Tower, DType.BFLOAT16, DType.FLOAT32)
    assert [call.path for call in model.calls[-3:]] == ["layers.2", "(output)", "(loss)"]
    cast = model.kinds["output"]
    assert cast.none.kept_bytes(*POINT) == 0
    assert [moment.live_bytes.at(*POINT) for moment in cast.none.forward] == [4 * FLOATS]
    assert cast.none.after_forward.at(*POINT) == 4 * FLOATS
    assert [moment.live_bytes.at(*POINT) for moment in cast.none.backward] == [(4 + 2) * FLOATS + 2 * 4]
    assert cast.none.after_backward.at(*POINT) == 2 * FLOATS + 2 * 4


def test_the_loss_gets_the_output_as_it_is_cast() -> None:
    # Nobody keeps what the head makes, 2 B a number. Without the cast `.float()` makes 4 B beside it, and the
    # logarithms of the softmax are 4 B; with it the loss gets 4 B, of which `.float()` makes no copy. Scalars: 8 B.
    live = {}
    for dtype in (None, DType.FLOAT32):
        (moment,) = described(Headed, DType.BFLOAT16, dtype).kinds["loss"].none.forward
        live[dtype] = moment.live_bytes.at(*POINT)
    assert live == {None: (2 + 4 + 4) * FLOATS + 8, DType.FLOAT32: (4 + 4) * FLOATS + 8}


@pytest.mark.parametrize(("param_dtype", "output_dtype"), [(None, DType.FLOAT32), (DType.BFLOAT16, None)])
def test_an_output_that_needs_no_cast_is_no_call(param_dtype: DType | None, output_dtype: DType | None) -> None:
    model = described(Tower, param_dtype, output_dtype)
    assert [call.path for call in model.calls[-2:]] == ["layers.2", "(loss)"]
    assert model.output_dtype is output_dtype


def test_squares_of_the_sequence_that_no_batch_multiplies() -> None:
    model = described(PositionBias, DType.BFLOAT16)
    assert len({point.micro_batch for point in model.points}) > 1
    saved = [tensor.size_bytes for kind in model.kinds.values() for tensor in kind.none.saved]
    assert Polynomial(ss=2 * 4) in saved
