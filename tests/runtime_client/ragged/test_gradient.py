"""How the gradients of a buffer reach the reduce-scatter input."""

import pytest
import torch
from torch import Tensor

from runtime_client.ragged.gradient import GradientPlan, Place, PlannedGradient

PLACES = (Place(1, 2), Place(4, 6))
"""Of two parameters in a buffer of 12 elements over 4 ranks: gaps at 0, at 3, and from 10 on."""


def planned(parts: dict[int, Tensor], told: list[frozenset[int]] | None = None, **plan: object) -> PlannedGradient:
    made = GradientPlan(num_elements=12, places=PLACES, on_reduce=(told if told is not None else []).append)
    first = next(iter(parts.values()))
    return PlannedGradient(made, parts, dtype=first.dtype, device=first.device)


def reduce_input(*gradients: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What FSDP2 sends, `(ranks, elements per rank)`."""
    out = torch.full((4, sum(gradient.numel() for gradient in gradients) // 4), float("nan"), dtype=dtype)
    torch.ops.fsdp.chunk_cat(list(gradients), dim=0, num_chunks=4, out=out)
    return out


def test_each_gradient_goes_to_its_place_and_gaps_are_zero() -> None:
    told: list[frozenset[int]] = []
    gradient = planned({0: torch.tensor([1.0, 2.0]), 1: torch.arange(3.0, 9.0).view(2, 3)}, told)
    assert reduce_input(gradient).tolist() == [[0, 1, 2], [0, 3, 4], [5, 6, 7], [8, 0, 0]]
    assert told == [frozenset({0, 1})]


def test_a_parameter_without_gradient_is_a_gap() -> None:
    told: list[frozenset[int]] = []
    gradient = planned({0: torch.tensor([1.0, 2.0])}, told)
    assert reduce_input(gradient).tolist() == [[0, 1, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert told == [frozenset({0})]


def test_two_buffers_lie_side_by_side_on_each_rank() -> None:
    first = planned({0: torch.tensor([1.0, 2.0]), 1: torch.arange(3.0, 9.0)})
    second = planned({1: torch.arange(11.0, 17.0)})
    zeros = torch.zeros(4)
    assert reduce_input(first, second, zeros).tolist() == [
        [0, 1, 2, 0, 0, 0, 0],
        [0, 3, 4, 0, 11, 12, 0],
        [5, 6, 7, 13, 14, 15, 0],
        [8, 0, 0, 16, 0, 0, 0],
    ]


def test_gradients_are_cast_on_the_way() -> None:
    gradient = planned({1: torch.arange(6, dtype=torch.bfloat16)})
    assert reduce_input(gradient).view(-1)[4:10].tolist() == [0, 1, 2, 3, 4, 5]


def test_accumulation_in_another_element_type() -> None:
    """What FSDP2 does between micro-batches that do not reduce: cast, then add."""
    first = planned({0: torch.ones(2, dtype=torch.bfloat16)}).to(torch.float32)
    assert isinstance(first, PlannedGradient)
    assert first.dtype is first.parts[0].dtype is torch.float32
    first += planned({0: torch.ones(2, dtype=torch.bfloat16), 1: torch.full((6,), 2.0, dtype=torch.bfloat16)})
    assert first.parts[0].tolist() == [2.0, 2.0]
    assert first.parts[1].dtype is torch.float32
    assert first.parts[1].tolist() == [2.0] * 6


def test_more_of_the_same_parameter_adds() -> None:
    gradient = planned({0: torch.ones(2)})
    gradient.add_part(0, torch.tensor([1.0, 3.0]))
    assert gradient.parts[0].tolist() == [2.0, 4.0]


def test_it_can_be_the_gradient_of_a_buffer_and_nothing_else() -> None:
    flat = torch.nn.Parameter(torch.zeros(12))
    flat.grad = planned({0: torch.ones(2)})
    assert isinstance(flat.grad, PlannedGradient)
    with pytest.raises(NotImplementedError, match="use the gradients of its parameters"):
        flat.grad * 2
