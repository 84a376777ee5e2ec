"""Storages that the code around the blocks holds through the forward, and that checkpointed blocks keep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from planner.schema import DType, KeptBy, ModelDescription
from runtime_client.describe import TrainingExample, describe, from_hf_config, token_inputs
from runtime_client.describe.prepare import prepare_parameters

POINT = (2, 64)
DIM = 64
EMBEDDINGS = POINT[0] * POINT[1] * DIM * 2
SHIFTS = POINT[1] * DIM * 2
POLICIES = {"none": "", "full": "0123", "first": "0", "last": "3", "but the first": "123", "every second": "02"}
"""Which blocks are checkpointed."""


class Block(nn.Module):
    """Autograd alone saves neither input; what it does save is far smaller than what the forward passes through."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 8 * DIM, bias=False), nn.Linear(8 * DIM, DIM, bias=False)

    def forward(self, x: Tensor, shifts: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(x + shifts)))


class Model(nn.Module):
    """Its embeddings and shifts stay local variables until its forward returns."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = embeddings = self.tokens(ids)
        shifts = torch.arange(ids.shape[1] * DIM, dtype=x.dtype).view(1, -1, DIM)
        for layer in self.layers:
            x = layer(x, shifts)
        logits = self.head(self.norm(x))
        assert embeddings.shape == x.shape
        return logits


@pytest.fixture(scope="module")
def described() -> ModelDescription:
    return describe(build, name="held", micro_batch=POINT[0], sequence=POINT[1])


def build() -> TrainingExample:
    return TrainingExample(model=Model(), inputs=token_inputs)


def measured_bytes(blocks: str, live_bytes: Any, as_unit: Callable[..., None]) -> tuple[int, int]:
    """Peaks of the forward and of a step."""
    with FakeTensorMode():
        example = build()
        model = example.model.train()
        prepare_parameters(model, DType.BFLOAT16)
        layers = model.get_submodule("layers")
        for name in blocks:
            layers._modules[name] = checkpoint_wrapper(layers._modules[name], preserve_rng_state=False)
        for layer in layers.children():
            as_unit(layer)
        args, kwargs = example.inputs(*POINT)
        with live_bytes(*model.parameters(), *args, *kwargs.values()) as live:
            loss = example.loss(model(*args, **kwargs), args, kwargs)
            forward_peak = live.peak
            loss.backward()
    return forward_peak, live.peak


def test_they_are_shared_and_held_to_the_end_of_the_forward(described: ModelDescription) -> None:
    paths = [call.path for call in described.calls]
    assert [
        (
            tensor.size_bytes.at(*POINT),
            paths[tensor.first_call],
            paths[tensor.last_call],
            paths[tensor.held_until],
            tensor.kept_by,
        )
        for tensor in described.shared
        if tensor.held_until is not None
    ] == [
        (EMBEDDINGS, "layers.0", "layers.0", "head", KeptBy.FULL),
        (SHIFTS, "layers.0", "layers.3", "head", KeptBy.FULL),
    ]


def test_what_autograd_saves_is_held_to_the_end_of_the_forward_too() -> None:
    """Blocks with a norm save what they get; a decoder's `inputs_embeds` stays a local variable all the same."""
    config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    build = from_hf_config({"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 2, **config})
    found = describe(build, name="llama", micro_batch=2, sequence=16, param_dtype=None)
    (held,) = found.held_inputs
    paths = [call.path for call in found.calls]
    assert (paths[held.call], paths[held.held_until]) == ("model.layers.0", "model.norm")
    assert held.size_bytes.at(2, 16) == 2 * 16 * 32 * 4


@pytest.mark.parametrize("policy", POLICIES)
def test_peak(
    policy: str,
    described: ModelDescription,
    peak_bytes: Callable[..., int],
    live_bytes: Any,
    as_unit: Callable[..., None],
) -> None:
    """Exact in forward in every mix of policies."""
    blocks = POLICIES[policy]
    measured = measured_bytes(blocks, live_bytes, as_unit)

    def checkpointed(path: str) -> bool:
        return path.startswith("layers.") and path[-1] in blocks

    assert peak_bytes(described, *POINT, checkpointed, forward_only=True) == measured[0]
    assert peak_bytes(described, *POINT, checkpointed) == measured[1]
