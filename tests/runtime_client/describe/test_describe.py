"""Structure of descriptions: frontier, glue, names, order of gradients, frozen parameters, dtypes."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.schema import CallRole, DType, ModelDescription
from runtime_client.describe import TrainingExample, describe, from_hf_config, token_inputs
from runtime_client.describe.frontier import find_frontier

LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


@pytest.fixture(scope="module")
def small(small_llama_example: Callable[[], TrainingExample]) -> ModelDescription:
    return describe(small_llama_example, name="small", micro_batch=2, sequence=64)


def test_calls_in_order_with_readable_names(small: ModelDescription) -> None:
    assert [(call.path, call.kind) for call in small.calls] == [
        ("tokens", "tokens"),
        ("", "model"),
        ("layers.0", "block_1"),
        *((f"layers.{index}", "block") for index in range(1, 5)),
        ("norm", "norm"),
        ("head", "head"),
        ("(loss)", "loss"),
    ]
    roles = [small.kinds[call.kind].role for call in small.calls]
    assert roles[:3] == [CallRole.EMBEDDING, CallRole.GLUE, CallRole.BLOCK]
    assert roles[-3:] == [CallRole.NORM, CallRole.HEAD, CallRole.LOSS]


def test_equal_parameters_are_stored_once(small: ModelDescription) -> None:
    assert {module.parameters for module in small.modules if "layers" in module.path} == {"block"}
    assert {p.dtype for _, p in small.iter_parameters()} == {DType.FLOAT32}
    assert small.param_dtype is DType.BFLOAT16


def test_gradients_complete_from_last_to_first(small: ModelDescription) -> None:
    block = small.kinds["block"]
    assert block.gradient_order[0] == "mlp.down.weight"
    assert block.gradient_order[-1] == "attention_norm.weight"
    counts = [moment.num_gradients for moment in block.none.backward]
    assert counts == sorted(counts)
    assert counts[-1] == len(block.gradient_order) == 9


def test_grad_flow_at_the_ends(small: ModelDescription) -> None:
    assert not small.kinds["tokens"].input_requires_grad
    assert small.kinds["tokens"].output_requires_grad
    assert not small.kinds["model"].output_requires_grad
    assert small.kinds["block"].input_requires_grad


def test_attention_flops_grow_with_the_square_of_the_sequence(small: ModelDescription) -> None:
    (region,) = [region for region in small.kinds["block"].regions if region.kind == "attention"]
    assert region.module == "attention"
    assert region.forward.flops.bss == 2 * 2 * 64
    assert region.backward.flops.bss == 5 * 2 * 64
    assert region.forward.num_kernels == region.backward.num_kernels == 1


def test_same_description_twice(
    small: ModelDescription, small_llama_example: Callable[[], TrainingExample]
) -> None:
    again = describe(small_llama_example, name="small", micro_batch=2, sequence=64)
    assert again.content_hash() == small.content_hash()
    assert ModelDescription.from_json(small.to_json()) == small


def test_the_collector_is_left_as_it_was(small: ModelDescription) -> None:
    assert gc.isenabled()


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.low = nn.Linear(16, 2, bias=False)
        self.high = nn.Linear(2, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.base(x)) + self.high(self.low(x))


class Tower(nn.Module):
    """Two towers, a parameter of the root, a module that never runs and a frozen base."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 16))
        self.left = nn.Sequential(*(Adapter() for _ in range(3)))
        self.right = nn.ModuleDict({name: Adapter() for name in "ab"})
        self.spare = nn.Linear(16, 16)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.left(x * self.scale + self.position)
        for block in self.right.values():
            x = block(x)
        return x


@pytest.fixture(scope="module")
def tower() -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(
            model=Tower(),
            inputs=lambda micro_batch, sequence: ((torch.zeros(micro_batch, sequence, 16),), {}),
            loss=lambda output, args, kwargs: output.square().mean(),
        )

    return describe(build, name="tower", micro_batch=2, sequence=32, param_dtype=None)


def test_frontier_of_two_towers() -> None:
    roles = {item.path: item.role for item in find_frontier(Tower())}
    blocks = {path for path, role in roles.items() if role is CallRole.BLOCK}
    assert blocks == {"left.0", "left.1", "left.2", "right.a", "right.b"}
    assert {path for path, role in roles.items() if role is CallRole.GLUE} == {"", "left", "right"}
    assert roles["spare"] is CallRole.OTHER


def test_frozen_unused_and_root_parameters(tower: ModelDescription) -> None:
    parameters = dict(tower.iter_parameters())
    assert not parameters["left.0.base.weight"].requires_grad
    assert "spare.weight" in parameters
    assert "spare" not in {call.path for call in tower.calls}
    glue = next(tower.kinds[call.kind] for call in tower.calls if call.path == "")
    assert glue.gradient_order == ("position",)
    assert tower.kinds["block"].gradient_order == ("high.weight", "low.weight")
    assert tower.buffers_bytes == 64
    assert tower.param_dtype is DType.FLOAT32


def test_a_model_without_blocks_is_one_call() -> None:
    def build() -> TrainingExample:
        model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 50))
        return TrainingExample(model=model, inputs=token_inputs)

    model = describe(build, name="plain", micro_batch=2, sequence=16)
    assert [call.path for call in model.calls] == ["", "(loss)"]
    assert model.kinds[model.calls[0].kind].full is None


def test_checkpoint_wrappers_are_taken_off(small: ModelDescription, small_llama: Callable[..., nn.Module]) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def build() -> TrainingExample:
        model = small_llama()
        model.layers[1] = checkpoint_wrapper(model.layers[1])
        return TrainingExample(model=model, inputs=token_inputs)

    wrapped = describe(build, name="small", micro_batch=2, sequence=64)
    assert wrapped.content_hash() == small.content_hash()


def test_llama_3_8b_is_counted_exactly() -> None:
    model = describe(from_hf_config(LLAMA_3_8B), name="llama-3-8b", micro_batch=1, sequence=8192)
    assert model.num_parameters == 8_030_261_248
    assert sum(call.kind in ("block", "block_1") for call in model.calls) == 32
    block = model.kinds["block"]
    assert block.full is not None
    assert block.full.kept_bytes(1, 8192) == 8192 * 4096 * 2
    products = sum(region.forward.flops.bs for region in block.regions if region.kind == "matmul")
    assert products == 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)


def test_a_layer_of_qwen3_30b_a3b_keeps_less_than_a_gibibyte() -> None:
    config = {
        "model_type": "qwen3_moe",
        "vocab_size": 1024,
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 40960,
    }
    model = describe(from_hf_config(config), name="qwen3", micro_batch=1, sequence=4096)
    block = model.kinds["block"]
    assert block.none.kept_bytes(1, 4096) == pytest.approx(0.797e9, rel=0.001)
    assert "aten._grouped_mm" in block.kernels
