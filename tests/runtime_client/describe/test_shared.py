"""Storages that several calls keep, under some policies or all, in a model that hands position biases on (T5)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from planner.schema import DType, KeptBy, ModelDescription
from runtime_client.describe import describe, from_hf_config
from runtime_client.describe.kernels import AcceleratorKernels, ZeroScalars, eager_masks
from runtime_client.describe.prepare import prepare_parameters

NUM_BLOCKS, NUM_HEADS = 3, 4
POINT = (2, 96)
BIASES = NUM_HEADS * POINT[1] ** 2 * 2
"""Bytes of the position biases of one tower."""
POLICIES: dict[str, Callable[[str], bool]] = {
    "none": lambda path: False,
    "full": lambda path: True,
    "encoder": lambda path: path.startswith("encoder.block."),
    "every second": lambda path: path.endswith(".1"),
    "last": lambda path: path.endswith(".2"),
}
build = from_hf_config(
    {
        "model_type": "t5",
        "vocab_size": 64,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_heads": NUM_HEADS,
        "num_layers": NUM_BLOCKS,
        "num_decoder_layers": NUM_BLOCKS,
    }
)


@pytest.fixture(scope="module")
def described() -> ModelDescription:
    return describe(build, name="t5", micro_batch=POINT[0], sequence=POINT[1])


def measured_peak_bytes(
    checkpointed: Callable[[str], bool], live_bytes: Callable[..., Any], as_unit: Callable[..., None]
) -> int:
    with FakeTensorMode(), AcceleratorKernels(), eager_masks():
        with ZeroScalars():
            example = build()
        model = example.model.train()
        prepare_parameters(model, DType.BFLOAT16)
        for tower in ("encoder", "decoder"):
            blocks = model.get_submodule(f"{tower}.block")
            for name, block in list(blocks.named_children()):
                if checkpointed(f"{tower}.block.{name}"):
                    blocks._modules[name] = checkpoint_wrapper(block, preserve_rng_state=False)
                as_unit(blocks._modules[name])
        args, kwargs = example.inputs(*POINT)
        with live_bytes(*model.parameters(), *kwargs.values()) as live:
            loss = example.loss(model(*args, **kwargs), args, kwargs)
            backward(loss)
    return live.peak


def backward(loss: torch.Tensor) -> None:
    """`loss.backward()` hides AcceleratorKernels from recomputations."""
    ones = torch.ones_like(loss)
    torch.autograd.graph._engine_run_backward(
        (loss,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def test_biases_are_kept_by_checkpointed_blocks_alone(described: ModelDescription) -> None:
    paths = [call.path for call in described.calls]
    biases = [tensor for tensor in described.shared if tensor.kept_by is KeptBy.FULL]
    assert [(paths[tensor.first_call], paths[tensor.last_call]) for tensor in biases] == [
        ("encoder.block.1", "encoder.block.2"),
        ("decoder.block.1", "decoder.block.2"),
    ]
    assert {tensor.size_bytes.at(*POINT) for tensor in biases} == {BIASES}
    assert {tensor.kept_by for tensor in described.shared} == {KeptBy.FULL, KeptBy.BOTH}


@pytest.mark.parametrize("policy", POLICIES)
def test_peak(
    policy: str,
    described: ModelDescription,
    peak_bytes: Callable[..., int],
    live_bytes: Callable[..., Any],
    as_unit: Callable[..., None],
) -> None:
    measured = measured_peak_bytes(POLICIES[policy], live_bytes, as_unit)
    assert peak_bytes(described, *POINT, POLICIES[policy]) == measured
