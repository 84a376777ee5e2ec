"""What is alive between the forward of one call and that of the next, and what only until a call has returned."""

import pytest
from torch import Tensor, nn

from planner.schema import Liveness, ModelDescription
from runtime_client.describe import TrainingExample, describe, token_inputs

WIDTH = 8
POINT = (2, 16)
HIDDEN = POINT[0] * POINT[1] * WIDTH * 4
"""Bytes of what one block hands to the next."""


class Frozen(nn.Module):
    """Nothing but the head is trained, so nothing but its input is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(4))
        self.requires_grad_(False)
        self.head = nn.Linear(WIDTH, 20, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        output: Tensor = self.head(hidden)
        return output


class FrozenWithResidual(Frozen):
    """The first hidden state is added at the end."""

    def forward(self, ids: Tensor) -> Tensor:
        hidden = first = self.tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        output: Tensor = self.head(hidden + first)
        return output


def described(model: type[nn.Module]) -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(model=model(), inputs=token_inputs, loss=lambda output, *_: output.square().sum())

    return describe(build, name="frozen", micro_batch=POINT[0], sequence=POINT[1], param_dtype=None)


def liveness(model: ModelDescription, path: str) -> Liveness:
    (kind,) = (model.kinds[call.kind] for call in model.calls if call.path == path)
    return kind.none


@pytest.mark.parametrize(("model", "more"), [(Frozen, 0), (FrozenWithResidual, 1)])
def test_the_caller_holds_the_input_of_a_block_until_it_returns(model: type[nn.Module], more: int) -> None:
    # While the hooks of a block run, its input and its output are alive; when the next block begins, the output is.
    found = described(model)
    for path in ("layers.1", "layers.2", "layers.3"):
        block = liveness(found, path)
        assert block.after_forward.at(*POINT) == (1 + more) * HIDDEN
        assert block.at_return.at(*POINT) == HIDDEN


def test_an_input_that_is_used_later_stays_in_between() -> None:
    first = liveness(described(FrozenWithResidual), "layers.0")
    assert first.after_forward.at(*POINT) == 2 * HIDDEN
    assert first.at_return.at(*POINT) == 0


def test_an_input_that_is_kept_is_neither() -> None:
    # The head keeps its input; the output, 20 numbers a token, is handed to the loss.
    head = liveness(described(Frozen), "head")
    assert head.kept_bytes(*POINT) == HIDDEN
    assert head.after_forward.at(*POINT) == POINT[0] * POINT[1] * 20 * 4
    assert head.at_return.at(*POINT) == 0
