"""Real architectures of tiny size: parameters, ties, calls, and the fingerprint of the real module."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from planner.schema import CallRole, ModelDescription, Work
from runtime_client.describe import describe, from_hf_config
from runtime_client.describe.op_sets import FLOPS_PER_BYTE
from runtime_client.describe.selective import MAX_SETS
from runtime_client.fingerprint import fingerprint

SMALL = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


@dataclass(frozen=True, kw_only=True)
class Case:
    config: dict[str, Any]
    micro_batch: int = 2
    sequence: int = 64
    num_parameters: int
    num_blocks: int
    ties: dict[str, str] = field(default_factory=dict)


def _attention_and_norms(dim: int, kv_dim: int) -> int:
    return 2 * dim * dim + 2 * dim * kv_dim + 2 * dim


CASES = {
    "llama": Case(
        config=SMALL | {"model_type": "llama", "intermediate_size": 128, "num_key_value_heads": 2},
        num_parameters=2 * 512 * 64 + 64 + 4 * (_attention_and_norms(64, 32) + 3 * 64 * 128),
        num_blocks=4,
    ),
    "gpt2": Case(
        config={"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 4}
        | {"n_positions": 64},
        num_parameters=512 * 64 + 64 * 64 + 2 * 64 + 3 * (12 * 64 * 64 + 13 * 64),
        num_blocks=3,
        ties={"lm_head.weight": "transformer.wte.weight"},
    ),
    "qwen3_moe": Case(
        config=SMALL
        | {"model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "max_position_embeddings": 128},
        num_parameters=2 * 512 * 64 + 64 + 4 * (_attention_and_norms(64, 32) + 2 * 16 + 8 * 64 + 8 * 3 * 64 * 32),
        num_blocks=4,
    ),
    "vit": Case(
        config={"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
        | {"intermediate_size": 128, "image_size": 64, "patch_size": 16, "num_labels": 10},
        num_parameters=(3 * 16 * 16 * 64 + 64) + 64 + 17 * 64 + 4 * (4 * 64 * 65 + 2 * 64 * 128 + 192 + 4 * 64)
        + 2 * 64 + 10 * 65,
        num_blocks=4,
    ),
    "t5": Case(
        config={"model_type": "t5", "vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4}
        | {"num_layers": 3, "num_decoder_layers": 3},
        num_parameters=512 * 64 + 2 * 32 * 4 + 2 * 64 + 3 * (4 * 64 * 64 + 2 * 64 * 128 + 2 * 64)
        + 3 * (8 * 64 * 64 + 2 * 64 * 128 + 3 * 64),
        num_blocks=6,
        ties={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
    ),
    "whisper": Case(
        config={"model_type": "whisper", "vocab_size": 512, "d_model": 64, "encoder_layers": 3}
        | {"decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 16, "max_source_positions": 50}
        | {"max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        sequence=32,
        num_parameters=(16 * 3 * 64 + 64) + (64 * 3 * 64 + 64) + 50 * 64 + 512 * 64 + 64 * 64 + 4 * 64
        + 3 * ((4 * 64 * 64 + 3 * 64) + (2 * 64 * 128 + 192) + 4 * 64)
        + 3 * (2 * (4 * 64 * 64 + 3 * 64) + (2 * 64 * 128 + 192) + 6 * 64),
        num_blocks=6,
        ties={"proj_out.weight": "model.decoder.embed_tokens.weight"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case_and_model(request: pytest.FixtureRequest) -> tuple[Case, ModelDescription]:
    case = CASES[request.param]
    build = from_hf_config(case.config)
    return case, describe(build, name=request.param, micro_batch=case.micro_batch, sequence=case.sequence)


def test_parameters_are_counted_exactly(case_and_model: tuple[Case, ModelDescription]) -> None:
    case, model = case_and_model
    real = from_hf_config(case.config)().model
    assert sum(parameter.numel() for parameter in real.parameters()) == case.num_parameters
    assert model.num_parameters == case.num_parameters
    assert {name: p.tied_to for name, p in model.iter_parameters() if p.tied_to} == case.ties


def test_fingerprint_is_that_of_the_real_module(case_and_model: tuple[Case, ModelDescription]) -> None:
    case, model = case_and_model
    assert fingerprint(from_hf_config(case.config)().model) == model.fingerprint
    with torch.device("meta"):
        assert fingerprint(from_hf_config(case.config)().model) == model.fingerprint


def test_every_block_is_a_call_and_every_gradient_comes_once(
    case_and_model: tuple[Case, ModelDescription],
) -> None:
    case, model = case_and_model
    blocks = [call for call in model.calls if model.kinds[call.kind].role is CallRole.BLOCK]
    assert len(blocks) == case.num_blocks
    assert all(model.kinds[call.kind].full is not None for call in blocks)
    assert model.calls[-1].path == "(loss)"
    completed = [
        f"{call.path}.{name}" if call.path else name
        for call in model.calls
        for name in model.kinds[call.kind].gradient_order
    ]
    unused = {"shared.weight"}  # T5's own table, which only lends its storage
    trainable = {name for name, parameter in model.iter_parameters() if parameter.requires_grad}
    assert sorted(completed) == sorted(trainable - unused)


def test_matrix_products_cost_twice_forward_in_backward(case_and_model: tuple[Case, ModelDescription]) -> None:
    case, model = case_and_model
    point = (case.micro_batch, case.sequence)
    for call in model.calls:
        kind = model.kinds[call.kind]
        for region in kind.regions:
            if region.kind == "matmul" and kind.role is CallRole.BLOCK and region.module:
                forward, backward = region.forward.flops.at(*point), region.backward.flops.at(*point)
                assert backward == 2 * forward


def test_each_block_has_a_few_ways_to_be_checkpointed_of_which_none_beats_another(
    case_and_model: tuple[Case, ModelDescription],
) -> None:
    case, model = case_and_model
    point = (case.micro_batch, case.sequence)
    for name in {call.kind for call in model.calls}:
        kind = model.kinds[name]
        if kind.role is not CallRole.BLOCK:
            continue
        assert kind.full is not None
        assert 2 <= len(kind.selective) <= MAX_SETS
        assert len({entry.saved_ops for entry in kind.selective}) == len(kind.selective)
        kept = [entry.liveness.kept_bytes(*point) for entry in kind.selective]
        costs = [_cost(entry.recompute, point) for entry in kind.selective]
        assert kept == sorted(kept)
        assert costs == sorted(costs, reverse=True)
        assert kind.full.kept_bytes(*point) < kept[0]
        assert kept[-1] < kind.none.kept_bytes(*point)
        assert costs[0] < _cost([region.recompute for region in kind.regions], point)


def _cost(works: Iterable[Work], point: tuple[int, int]) -> int:
    return sum(max(work.flops.at(*point), FLOPS_PER_BYTE * work.moved_bytes.at(*point)) for work in works)


def test_a_model_that_ignores_the_sequence() -> None:
    model = describe(from_hf_config(CASES["vit"].config), name="vit", micro_batch=2, sequence=16)
    block = model.kinds["block"]
    assert block.none.kept_bytes(2, 16) == block.none.kept_bytes(2, 4096) > 0


def test_checks_of_masks_are_host_syncs() -> None:
    model = describe(from_hf_config(CASES["llama"].config), name="llama", micro_batch=2, sequence=64)
    assert any(region.host_sync for kind in model.kinds.values() for region in kind.regions)
    assert model.kinds["block"].kernels == ("aten._scaled_dot_product_flash_attention_for_cpu",)
