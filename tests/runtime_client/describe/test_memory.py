"""Predicted peaks against torch's own memory tracker on the same model with real tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from planner.schema import ModelDescription, SavedTensor
from runtime_client.describe import TrainingExample, describe, from_hf_config, token_inputs
from tests.runtime_client.describe.measured import measured_peak_bytes

HF_LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
POLICIES = {
    "none": lambda path: False,
    "full": lambda path: True,
    "every second block": lambda path: path.rpartition(".")[2] in ("1", "3"),
    "first two blocks": lambda path: path.rpartition(".")[2] in ("0", "1"),
}


def checkpointed(model: nn.Module, parent: str, policy: str) -> list[str]:
    """Children of a module that a policy checkpoints."""
    paths = [f"{parent}.{name}" for name, _ in model.get_submodule(parent).named_children()]
    return [path for path in paths if POLICIES[policy](path)]


@pytest.mark.parametrize("policy", POLICIES)
def test_peak_equals_that_of_the_memory_tracker(
    policy: str,
    described: ModelDescription,
    small_llama: Callable[..., nn.Module],
    peak_bytes: Callable[..., int],
) -> None:
    for micro_batch, sequence in ((2, 64), (3, 96)):
        ids = torch.zeros(micro_batch, sequence, dtype=torch.long)
        model = small_llama().to(torch.bfloat16)
        measured = measured_peak_bytes(model, ids, checkpointed(model, "layers", policy))
        assert peak_bytes(described, micro_batch, sequence, POLICIES[policy]) == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize("policy", ["none", "full"])
def test_peak_of_a_transformers_model_run_eagerly(policy: str, peak_bytes: Callable[..., int]) -> None:
    build = from_hf_config(HF_LLAMA)
    model = describe(build, name="llama", micro_batch=2, sequence=64)
    real = build().model.to(torch.bfloat16)
    ids = torch.zeros(2, 64, dtype=torch.long)
    measured = measured_peak_bytes(real, ids, checkpointed(real, "model.layers", policy))
    assert peak_bytes(model, 2, 64, POLICIES[policy]) == pytest.approx(measured, rel=0.01)


def test_full_checkpointing_keeps_exactly_the_block_inputs(described: ModelDescription) -> None:
    hidden_bytes = 2 * 64 * 64 * 2
    blocks = [kind for kind in described.kinds.values() if kind.role == "block"]
    assert blocks
    for kind in blocks:
        assert kind.full is not None
        (only,) = kind.full.saved
        assert only.from_input
        assert only.op == ""
        assert only.size_bytes.at(2, 64) == hidden_bytes


def test_storages_that_all_blocks_save_are_shared_and_counted_once(described: ModelDescription) -> None:
    (cosine,) = described.shared
    assert cosine.size_bytes.at(2, 64) == 64 * 16 * 2
    paths = [call.path for call in described.calls]
    assert (paths[cosine.first_call], paths[cosine.last_call]) == ("layers.0", "layers.4")


def test_saved_bytes_of_a_block_by_hand(described: ModelDescription) -> None:
    """What autograd needs of each operation of the block, written down from their derivatives."""
    tokens, dim, hidden, heads = 2 * 64, 64, 160, 4
    norm = tokens * dim * 4 + tokens * 4 + tokens * dim * 2 + tokens * dim * 2
    attention = 3 * tokens * dim * 2 + tokens * dim * 2 + tokens * heads * 4
    mlp = 4 * tokens * hidden * 2
    saved: list[SavedTensor] = list(described.kinds["block"].none.saved)
    assert sum(tensor.size_bytes.at(2, 64) for tensor in saved) == 2 * norm + attention + mlp


@pytest.mark.parametrize(
    ("hidden", "peak_of_full_forward", "peak_of_backward"), [(1024, "mlp", "mlp"), (16, "attention", "mlp_norm")]
)
def test_where_a_block_has_its_peak_depends_on_its_sizes(
    hidden: int, peak_of_full_forward: str, peak_of_backward: str, small_llama: Callable[..., nn.Module]
) -> None:
    """Moments are those of single operations: products, attention and norms each have their own."""
    model = describe(
        lambda: TrainingExample(model=small_llama(num_blocks=3, hidden=hidden), inputs=token_inputs),
        name="small",
        micro_batch=2,
        sequence=64,
    )
    block = model.kinds["block"]
    assert block.full is not None
    for moments, module in (
        (block.full.forward, peak_of_full_forward),
        (block.full.backward, peak_of_backward),
        (block.none.backward, peak_of_backward),
    ):
        peak = max(moments, key=lambda moment: moment.live_bytes.at(2, 64))
        assert block.regions[peak.region].module == module
    assert len({moment.live_bytes for moment in block.none.backward}) > 8


def test_recomputation_stops_before_the_last_product(described: ModelDescription) -> None:
    regions = described.kinds["block"].regions
    flops = {
        region.module: (region.forward.flops.at(2, 64), region.recompute.flops.at(2, 64)) for region in regions
    }
    product = 2 * (2 * 64) * 64 * 160
    assert flops["mlp.up"] == (product, product)
    assert flops["mlp.down"] == (product, 0)
