"""Ragged tensors on one of four ranks, of which none answers."""

import pytest
import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from runtime_client.optimizers import Adam8bit, Muon
from runtime_client.optimizers.errors import CutParameter
from runtime_client.ragged import LocalPiece, local_pieces
from runtime_client.ragged.local_pieces import boundaries, is_whole_somewhere
from runtime_client.ragged.tensor import RaggedTensor, Spread, slice_like

WHOLE = torch.arange(20.0).view(5, 4)


def ragged(mesh: DeviceMesh, sizes: tuple[int, ...], whole: torch.Tensor = WHOLE) -> RaggedTensor:
    """What rank 0 holds."""
    spread = Spread(mesh, sizes)
    local = whole.reshape(-1)[: sizes[0]].clone().view(spread.local_shape(whole.shape))
    return RaggedTensor(local, spread, whole.shape)


def test_shape_of_the_local_part(mesh: DeviceMesh) -> None:
    assert tuple(ragged(mesh, (8, 8, 4, 0)).to_local().shape) == (2, 4)
    assert tuple(ragged(mesh, (8, 7, 5, 0)).to_local().shape) == (8,)
    assert tuple(ragged(mesh, (0, 20, 0, 0)).to_local().shape) == (0, 4)


def test_element_by_element(mesh: DeviceMesh) -> None:
    one = ragged(mesh, (3, 17, 0, 0))
    assert ((one + one) * 0.5 + 1).to_local().tolist() == [1.0, 2.0, 3.0]
    one.mul_(2).addcdiv_(torch.ones_like(one), torch.full_like(one, 4.0))
    assert one.to_local().tolist() == [0.25, 2.25, 4.25]
    assert one.shape == WHOLE.shape
    assert one.bfloat16().dtype is one.bfloat16().to_local().dtype is torch.bfloat16


def test_lists_with_other_dtensors(mesh: DeviceMesh) -> None:
    even = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False)
    for pair in ([even, ragged(mesh, (3, 17, 0, 0))], [ragged(mesh, (3, 17, 0, 0)), even]):
        torch._foreach_add_(pair, 1.0)
        halves = torch._foreach_div(pair, 2.0)
        assert [type(half) for half in halves] == [type(tensor) for tensor in pair]
        assert next(half for half in halves if type(half) is RaggedTensor).to_local().tolist() == [0.5, 1.0, 1.5]


def test_norm_of_the_local_part_waits_for_the_others(mesh: DeviceMesh) -> None:
    part = torch.linalg.vector_norm(ragged(mesh, (5, 15, 0, 0)))
    assert isinstance(part, DTensor)
    assert part.placements[0].is_partial()
    assert part.to_local().item() == pytest.approx((1 + 4 + 9 + 16) ** 0.5)
    largest = torch.linalg.vector_norm(ragged(mesh, (0, 20, 0, 0)), float("inf"))
    assert largest.to_local().item() == 0.0


def test_what_needs_the_whole_is_refused(mesh: DeviceMesh) -> None:
    one = ragged(mesh, (3, 17, 0, 0))
    for operation in (lambda: one @ one.T, lambda: one.mean(dim=-1), lambda: one.sum(), lambda: one.view(20)):
        with pytest.raises(NotImplementedError, match="a rank holds only a run"):
            operation()
    with pytest.raises(NotImplementedError, match="_foreach_max"):
        torch._foreach_max([one])
    with pytest.raises(ValueError, match="spread otherwise"):
        one + ragged(mesh, (4, 16, 0, 0))
    with pytest.raises(ValueError, match="spread otherwise"):
        one + WHOLE


def test_copies_of_whole_tensors_take_the_own_part(mesh: DeviceMesh) -> None:
    one = ragged(mesh, (3, 17, 0, 0))
    one.copy_(WHOLE + 7)
    assert one.to_local().tolist() == [7.0, 8.0, 9.0]
    assert slice_like(WHOLE, one).to_local().tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"shape \(4, 5\) for one of shape \(5, 4\)"):
        slice_like(WHOLE.view(4, 5), one)


def test_what_a_checkpoint_asks(mesh: DeviceMesh) -> None:
    one = ragged(mesh, (6, 14, 0, 0))
    items = one.__create_write_items__("weight", one)
    assert [tuple(item.index.offset) for item in items] == [(0, 0), (1, 0)]
    assert [tuple(item.tensor_data.chunk.sizes) for item in items] == [(1, 4), (1, 2)]
    assert all(item.tensor_data.size == WHOLE.shape for item in items)
    one.__get_tensor_shard__(items[1].index).fill_(-1.0)
    assert one.to_local().tolist() == [0.0, 1.0, 2.0, 3.0, -1.0, -1.0]


def test_asynchronous_checkpoints_stage_a_copy(mesh: DeviceMesh) -> None:
    """Also of a view in the middle of a buffer, whose offset is not that of the tensor."""
    buffer = torch.arange(9.0)
    one = RaggedTensor(buffer[2:5], Spread(mesh, (3, 17, 0, 0)), WHOLE.shape)
    assert (one.storage_offset(), one.data_ptr()) == (0, 0)
    staged = StateDictStager(pin_memory=False, share_memory=False).stage({"weight": one})["weight"]
    buffer.zero_()
    assert type(staged) is RaggedTensor
    assert staged.to_local().tolist() == [2.0, 3.0, 4.0]
    assert staged.spread.sizes == one.spread.sizes


def test_pieces_and_boundaries(mesh: DeviceMesh) -> None:
    one = ragged(mesh, (6, 0, 14, 0))
    assert local_pieces(one) == (LocalPiece(offset=0, num_elements=6),)
    assert boundaries(one) == [6, 6, 20]
    even = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)], run_check=False, shape=(5, 4), stride=(4, 1))
    assert local_pieces(even) == (LocalPiece(offset=0, num_elements=8),)
    assert boundaries(even) == [8, 16, 20]
    columns = DTensor.from_local(torch.ones(5, 1), mesh, [Shard(1)], run_check=False)
    assert [(piece.offset, piece.num_elements) for piece in local_pieces(columns)] == [
        (4 * row, 1) for row in range(5)
    ]
    assert local_pieces(WHOLE) == (LocalPiece(offset=0, num_elements=20),)
    assert not is_whole_somewhere(one)
    assert is_whole_somewhere(ragged(mesh, (0, 0, 20, 0)))
    assert is_whole_somewhere(WHOLE)


def test_muon_refuses_a_matrix_that_is_cut(mesh: DeviceMesh) -> None:
    weight = torch.nn.Parameter(ragged(mesh, (8, 12, 0, 0)))
    with pytest.raises(CutParameter, match=r"Muon: parameter 'head\.weight' of shape \(5, 4\) is cut"):
        Muon([("head.weight", weight)])
    with pytest.raises(CutParameter, match=r"parameter 'params\[0\]'"):
        Muon([weight])


def test_adam_refuses_blocks_that_are_cut(mesh: DeviceMesh) -> None:
    whole = torch.zeros(64, 64)
    with pytest.raises(CutParameter, match=r"'weight' .* blocks of 256 elements"):
        Adam8bit([("weight", torch.nn.Parameter(ragged(mesh, (257, 4096 - 257, 0, 0), whole)))])
    Adam8bit([torch.nn.Parameter(ragged(mesh, (256, 4096 - 256, 0, 0), whole))])
    Adam8bit([torch.nn.Parameter(ragged(mesh, (3, 17, 0, 0)))])
