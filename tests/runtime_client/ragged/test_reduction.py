"""The sum of the rank-ordered reduce-scatter; what the ranks send is put in by hand."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime_client.ragged.reduction import RankOrderedReduceScatter


class ThreeRanks:
    def size(self) -> int:
        return 3


def reduced(monkeypatch: pytest.MonkeyPatch, received: torch.Tensor, op: Any) -> list[float]:
    """`received`: what the three ranks send here, `(ranks, n)`."""
    monkeypatch.setattr(dist, "all_to_all_single", lambda output, _input, group: output.copy_(received.view(-1)))
    reduce = RankOrderedReduceScatter()
    made = reduce.allocate((received.numel(),), dtype=received.dtype, device=received.device)
    output = reduce.allocate((received.size(1),), dtype=received.dtype, device=received.device)
    reduce(output, made, group=ThreeRanks(), op=op)
    return output.tolist()


def test_ranks_are_added_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """(1e8 + 1) - 1e8 is 0 in float32, (1e8 - 1e8) + 1 is 1."""
    received = torch.tensor([[1e8, 1e8], [1.0, -1e8], [-1e8, 1.0]])
    assert reduced(monkeypatch, received, dist.ReduceOp.SUM) == [0.0, 1.0]


def test_the_average_divides_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reduced(monkeypatch, torch.tensor([[3.0], [4.0], [5.0]]), dist.ReduceOp.AVG) == [4.0]


def test_narrow_types_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 has steps of 2 above 256: adding 1 twice would stay at 256."""
    received = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    assert reduced(monkeypatch, received, dist.ReduceOp.SUM) == [258.0]


def test_other_reductions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match="sums or averages"):
        reduced(monkeypatch, torch.ones(3, 1), dist.ReduceOp.MAX)
