"""What cannot be described is refused with its place and a remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime_client.describe import (
    AbsurdActivations,
    DataDependent,
    DifferentTraces,
    NoParameters,
    NoTarget,
    NotDescribable,
    NotPolynomial,
    RepeatedModule,
    ScalarParameter,
    TrainingExample,
    describe,
    from_hf_config,
    load_target,
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Stack(nn.Module):
    """Two layers, and whatever `between` does to the activations."""

    def __init__(self, between: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.between(self.layers[0](x)))


class WithScale(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


def inputs(micro_batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.zeros(micro_batch, sequence, 8),), {}


def tried(model: Callable[[], nn.Module], sequence: int = 16) -> None:
    describe(lambda: TrainingExample(model=model(), inputs=inputs), name="x", micro_batch=2, sequence=sequence)


def frozen() -> nn.Module:
    return Stack().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (nn.ReLU, NoParameters, "nothing to shard"),
        (frozen, NoParameters, "unfreeze"),
        (WithScale, ScalarParameter, r"'scale' .*shape \(1,\)"),
        (lambda: Stack(lambda x: x[x.sum(-1) > 0]), DataDependent, "static shape"),
        (lambda: Stack(lambda x: x.exp() if x.shape[1] > 13 else x), DifferentTraces, "avoid branches|size"),
        (lambda: Stack(lambda x: x.repeat(1, x.shape[1] ** 2, 1)), NotPolynomial, "the terms one, bs, bss give"),
    ],
)
def test_refusals(model: Callable[[], nn.Module], error: type[NotDescribable], words: str) -> None:
    with pytest.raises(error, match=words):
        tried(model)


def test_weights_shared_over_depth() -> None:
    albert = {"model_type": "albert", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "intermediate_size": 64, "embedding_size": 16}
    with pytest.raises(RepeatedModule, match="ALBERT"):
        describe(from_hf_config(albert | heads), name="albert", micro_batch=2, sequence=16)


def test_experts_that_copy_parameters_per_token() -> None:
    config = {"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 256, "num_hidden_layers": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "experts_implementation": "batched_mm"}
    with pytest.raises(AbsurdActivations, match=r"'model.layers.0'.*grouped_mm"):
        describe(from_hf_config(config | experts | heads), name="moe", micro_batch=2, sequence=2048)


def test_eager_expert_loops() -> None:
    config = {"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "experts_implementation": "eager"}
    with pytest.raises(DataDependent, match="grouped_mm"):
        describe(from_hf_config(config | experts | heads), name="moe", micro_batch=2, sequence=16)


@pytest.mark.parametrize("target", ["nothing", "os:", "no_such_module:build", "os:no_such_name", "os:name"])
def test_targets_that_name_nothing(target: str) -> None:
    with pytest.raises(NoTarget, match=target.partition(":")[0]):
        load_target(target)


def test_target_of_the_command_line() -> None:
    assert load_target("runtime_client.describe:TrainingExample") is TrainingExample


def test_configurations_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    with pytest.raises(NoTarget, match="abacus"):
        from_hf_config(tmp_path)()
    with pytest.raises(NoTarget, match="readable"):
        from_hf_config(tmp_path / "missing.json")
