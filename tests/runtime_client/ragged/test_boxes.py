import random
from itertools import product
from math import prod

import pytest
import torch

from runtime_client.ragged.boxes import Box, boxes


def test_a_run_that_starts_and_ends_inside_rows() -> None:
    """Elements 3 to 16 of a (5, 4) matrix: the last of row 0, rows 1 to 3, the first of row 4."""
    assert list(boxes((5, 4), 3, 17)) == [
        Box(offsets=(0, 3), sizes=(1, 1), start=3),
        Box(offsets=(1, 0), sizes=(3, 4), start=4),
        Box(offsets=(4, 0), sizes=(1, 1), start=16),
    ]


def test_a_run_inside_a_row() -> None:
    assert list(boxes((5, 4), 9, 11)) == [Box(offsets=(2, 1), sizes=(1, 2), start=9)]


def test_nothing() -> None:
    assert list(boxes((5, 4), 7, 7)) == []


@pytest.mark.parametrize("seed", range(30))
def test_boxes_cover_each_run_once_in_order(seed: int) -> None:
    generator = random.Random(seed)
    shape = tuple(generator.randint(1, 4) for _ in range(generator.randint(1, 4)))
    whole = torch.arange(prod(shape)).view(shape)
    for start, end in product(range(whole.numel() + 1), repeat=2):
        found = list(boxes(shape, start, max(start, end)))
        assert len(found) <= 2 * len(shape) - 1
        cut = [_read(whole, box) for box in found]
        assert torch.cat([*cut, whole.view(-1)[:0]]).tolist() == list(range(start, max(start, end)))
        assert [box.start for box in found] == [int(piece[0]) for piece in cut]


def _read(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))].reshape(-1)
