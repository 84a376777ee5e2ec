"""Padding of even shards along dimension 0."""

from math import prod

import pytest

from planner.program.outline import OutlineKind
from planner.schema import DType, Precision
from tests.planner.factories import CallSpec
from tests.published.steps import block_model, step

BF16 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)
GATHER, SCATTER = OutlineKind.ALL_GATHER, OutlineKind.REDUCE_SCATTER


@pytest.mark.parametrize(
    ("rows", "ranks", "padded"), [(64, 4, 64), (64, 7, 70), (5, 4, 8), (1, 8, 8), (64, 128, 128), (2880, 512, 3072)]
)
def test_gathers_move_whole_chunks(rows: int, ranks: int, padded: int) -> None:
    """A gather moves ceil(d0 / ws) ws rows, and so does a reduce-scatter (docs/fsdp2.md)."""
    found = step(block_model(2, CallSpec(shapes=((rows, 3),)), root=None), ranks, precision=BF16)
    assert found.sizes(GATHER, "layers.1") == {padded * 3 * 2}
    assert found.sizes(SCATTER, "layers.1") == {padded * 3 * 4}


def test_a_matrix_with_fewer_rows_than_ranks_leaves_ranks_empty() -> None:
    """64 x 4096 over 128 ranks: 64 ranks hold nothing and the gather is twice the matrix (reported case 3).

    An fp8 gather, which that report is about, cannot be planned; a matrix like this one would be no use to it.
    """
    found = step(block_model(1, CallSpec(shapes=((64, 4096),)), root=None), 128, precision=BF16)
    assert found.sizes(GATHER, "layers.0") == {2 * 64 * 4096 * 2}
    stored = 4096 * 4  # one row in float32: 64 such shards are all of the matrix
    assert found.peaks.optimizer.by_category_bytes["parameters"] == stored


# One layer of each, from the published configurations.
GPT_OSS_120B = (
    *((2880,), (4096, 2880), (4096,), (512, 2880), (512,), (512, 2880), (512,), (2880, 4096), (2880,), (64,)),
    *((2880,), (128, 2880), (128,), (128, 5760, 2880), (128, 5760), (128, 2880, 2880), (128, 2880)),
)
DEEPSEEK_V3 = (
    *((7168,), (1536, 7168), (1536,), (24576, 1536), (576, 7168), (512,), (32768, 512), (7168, 16384), (7168,)),
    *((256, 7168), (256,)),
    *((2048, 7168), (2048, 7168), (7168, 2048)) * 257,
)


@pytest.mark.parametrize(
    ("layer", "ranks", "percent"),
    [
        (GPT_OSS_120B, 128, 0),
        (GPT_OSS_120B, 256, 99),
        (GPT_OSS_120B, 512, 298),
        (DEEPSEEK_V3, 256, 0),
        (DEEPSEEK_V3, 512, 0),
    ],
)
def test_padding_of_real_layers(layer: tuple[tuple[int, ...], ...], ranks: int, percent: int) -> None:
    """veScale-FSDP (arXiv 2602.22437): FSDP2's dim-0 padding of a layer, in percent of its elements.

    128 experts stacked in one tensor cannot fill more than 128 ranks; one tensor per expert can.
    """
    elements = sum(map(prod, layer))
    found = step(block_model(1, CallSpec(shapes=layer), root=None), ranks, precision=BF16)
    (gathered,) = found.sizes(GATHER, "layers.0")
    assert round(100 * (gathered / 2 / elements - 1)) == percent
