"""Predicted peaks with children of blocks checkpointed against torch's own memory tracker on real tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from planner.program.parts import expanded
from planner.schema import ModelDescription
from tests.runtime_client.describe.measured import measured_peak_bytes

NUM_BLOCKS = 5
CHECKPOINTED = {
    "none": (),
    "mlp": tuple(f"layers.{index}.mlp" for index in range(NUM_BLOCKS)),
    "attention": tuple(f"layers.{index}.attention" for index in range(NUM_BLOCKS)),
    "mixed": ("layers.0.attention", "layers.1.mlp", "layers.1.mlp_norm", "layers.3.mlp", "layers.4.attention"),
    "all": tuple(
        f"layers.{index}.{name}"
        for index in range(NUM_BLOCKS)
        for name in ("attention_norm", "attention", "mlp_norm", "mlp")
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTED)
def test_peak_equals_that_of_the_memory_tracker(
    case: str,
    described: ModelDescription,
    small_llama: Callable[..., nn.Module],
    peak_bytes: Callable[..., int],
) -> None:
    modules = CHECKPOINTED[case]
    inside = [(f"layers.{index}.mlp",) for index in range(NUM_BLOCKS)]
    model = expanded(described, inside, modules).model
    for micro_batch, sequence in ((2, 64), (3, 96)):
        ids = torch.zeros(micro_batch, sequence, dtype=torch.long)
        measured = measured_peak_bytes(small_llama().to(torch.bfloat16), ids, modules)
        predicted = peak_bytes(model, micro_batch, sequence, lambda path: path in modules)
        assert predicted == pytest.approx(measured, rel=0.001)
