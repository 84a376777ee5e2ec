"""Selective checkpointing: what is described against torch's own, and which sets of operations are offered."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from planner.schema import CallKind, ModelDescription, SelectiveCheckpoint
from runtime_client.describe import TrainingExample, cross_entropy_loss, describe, token_inputs
from runtime_client.saved_ops import UnknownOperation, resolve_saved_ops, selective_contexts

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
PRODUCT = "aten.mm.default"
SETS = [(PRODUCT,), (ATTENTION,), (ATTENTION, PRODUCT)]
POINTS = [(2, 64), (3, 96)]


def entry_of(kind: CallKind, saved_ops: tuple[str, ...]) -> SelectiveCheckpoint:
    (entry,) = [entry for entry in kind.selective if entry.saved_ops == saved_ops]
    return entry


VOCAB = 16
"""So small that peaks are in blocks, not in the loss."""


@pytest.fixture(scope="module")
def described(small_llama: Callable[..., nn.Module]) -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(model=small_llama(vocab=VOCAB), inputs=token_inputs)

    return describe(build, name="small", micro_batch=2, sequence=64)


class KeptTracker(MemTracker):
    """Also the bytes alive when the loss is there and backward begins."""

    def bytes_now(self) -> int:
        return sum(device["Total"] for device in self.get_tracker_snapshot("current").values())

    def peak_bytes(self) -> int:
        return sum(device["Total"] for device in self.get_tracker_snapshot("peak").values())


def measured(model: nn.Module, ids: Tensor, saved_ops: tuple[str, ...] | None) -> tuple[int, int]:
    """Bytes kept for backward and peak over forward and backward, parameters, buffers and inputs left out."""
    if saved_ops is not None:
        for name, layer in list(model.layers.named_children()):
            wrapped = checkpoint_wrapper(layer, context_fn=partial(selective_contexts, saved_ops))
            setattr(model.layers, name, wrapped)
    tracker = KeptTracker()
    tracker.track_external(model, ids)
    outside = sum(p.nbytes for p in model.parameters()) + ids.nbytes
    with tracker:
        output = model(ids)
        loss = cross_entropy_loss(output, (ids,), {})
        del output
        kept = tracker.bytes_now()
        loss.backward()
    return kept - outside, tracker.peak_bytes() - outside


@pytest.mark.parametrize("saved_ops", SETS)
def test_kept_bytes_and_peak_are_those_of_the_memory_tracker(
    saved_ops: tuple[str, ...],
    described: ModelDescription,
    small_llama: Callable[..., nn.Module],
    peak_bytes: Callable[..., int],
) -> None:
    for point in POINTS:
        ids = torch.zeros(*point, dtype=torch.long)
        nothing, _ = measured(small_llama(vocab=VOCAB).to(torch.bfloat16), ids, None)
        kept, peak = measured(small_llama(vocab=VOCAB).to(torch.bfloat16), ids, saved_ops)
        blocks = [described.kinds[call.kind] for call in described.calls if "layers" in call.path]
        saved = sum(
            kind.none.kept_bytes(*point) - entry_of(kind, saved_ops).liveness.kept_bytes(*point) for kind in blocks
        )
        assert saved == nothing - kept
        assert peak_bytes(described, *point, lambda path: saved_ops) == pytest.approx(peak, rel=0.001)


def test_kept_bytes_by_hand(described: ModelDescription) -> None:
    """The input of the block and, of each product, its output, whether backward needs it or not."""
    tokens, dim, hidden, heads = 2 * 64, 64, 160, 4
    block = described.kinds["block"]
    products = 2 * tokens * (5 * dim + 2 * hidden)
    attention = 2 * tokens * dim + 4 * tokens * heads
    assert entry_of(block, (PRODUCT,)).liveness.kept_bytes(2, 64) == 2 * tokens * dim + products
    assert entry_of(block, (ATTENTION,)).liveness.kept_bytes(2, 64) == 2 * tokens * dim + attention
    for tensor in entry_of(block, (PRODUCT,)).liveness.saved:
        assert tensor.from_input == (tensor.op == "")
        assert tensor.op in ("", "aten.mm")


def test_what_is_kept_is_not_run_again(described: ModelDescription) -> None:
    block = described.kinds["block"]
    for entry in block.selective:
        pairs = list(zip(block.regions, entry.recompute, strict=True))
        again = {region.kind for region, work in pairs if work.num_kernels}
        assert ("matmul" in again) == (PRODUCT not in entry.saved_ops)
        assert ("attention" in again) == (ATTENTION not in entry.saved_ops)
        assert sum(work.num_kernels for work in entry.recompute) > 0


def test_each_entry_keeps_less_than_none_and_repeats_less_than_full(described: ModelDescription) -> None:
    for kind in described.kinds.values():
        if kind.full is None or kind.role != "block":
            continue
        assert {entry.saved_ops for entry in kind.selective} == set(SETS)
        kept = [entry.liveness.kept_bytes(2, 64) for entry in kind.selective]
        moved = [sum(work.moved_bytes.at(2, 64) for work in entry.recompute) for entry in kind.selective]
        assert kept == sorted(kept)
        assert moved == sorted(moved, reverse=True)
        assert kind.full.kept_bytes(2, 64) < kept[0]
        assert kept[-1] < kind.none.kept_bytes(2, 64)
        assert moved[0] < sum(region.recompute.moved_bytes.at(2, 64) for region in kind.regions)


class Layer(nn.Module):
    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.run = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def described_layers(run: Callable[[nn.Module, Tensor], Tensor]) -> CallKind:
    def build() -> TrainingExample:
        model = nn.Sequential(
            nn.Embedding(50, 16), nn.Sequential(*(Layer(run) for _ in range(3))), nn.Linear(16, 50)
        )
        return TrainingExample(model=model, inputs=token_inputs)

    return describe(build, name="layers", micro_batch=2, sequence=32).kinds["block"]


def add_in_place(layer: nn.Module, x: Tensor) -> Tensor:
    return x + layer.two(layer.one(x).add_(1.0).sigmoid())


def attend(layer: nn.Module, x: Tensor) -> Tensor:
    heads = layer.one(x.exp().sin().tanh()).unflatten(-1, (2, 8)).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).transpose(1, 2).flatten(2)
    return x + F.dropout(layer.two(out), 0.1)


def attend_with_noise(layer: nn.Module, x: Tensor) -> Tensor:
    return attend(layer, x) * torch.empty_like(x).bernoulli_(0.5)


def test_an_output_that_is_changed_in_place_is_not_kept() -> None:
    """Torch refuses it in backward."""
    assert described_layers(add_in_place).selective == ()


def test_random_operations_are_kept_all_or_none() -> None:
    sets = {entry.saved_ops for entry in described_layers(attend).selective}
    assert {(PRODUCT,), (ATTENTION, "aten.native_dropout.default")} <= sets
    assert all((ATTENTION in ops) == ("aten.native_dropout.default" in ops) for ops in sets)


def test_attention_with_dropout_is_not_kept_beside_noise_made_in_place() -> None:
    assert {entry.saved_ops for entry in described_layers(attend_with_noise).selective} == {(PRODUCT,)}


@pytest.mark.parametrize(
    ("saved_ops", "is_right"),
    [
        ((PRODUCT,), True),
        (("aten.native_dropout.default",), False),
        (("aten.bernoulli.default", "aten.native_dropout.default"), True),
    ],
)
def test_keeping_some_random_operations_makes_torch_compute_wrong_gradients(
    saved_ops: tuple[str, ...], is_right: bool
) -> None:
    weight = torch.eye(8).requires_grad_()

    def run(x: Tensor) -> Tensor:
        dropped = torch.native_dropout(x @ weight, 0.5, True)[0]
        return ((dropped * torch.bernoulli(torch.full_like(dropped, 0.5))) @ weight).sin().sum()

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        torch.manual_seed(0)
        x = torch.ones(8, 8, requires_grad=True)
        function(x).backward()
        assert x.grad is not None
        return x.grad

    contexts = partial(selective_contexts, saved_ops)
    kept = gradient(lambda x: checkpoint(run, x, use_reentrant=False, context_fn=contexts))
    assert torch.equal(kept, gradient(run)) == is_right


def test_fused_attention_stands_for_the_kernels_of_all_devices() -> None:
    names = {str(operation) for operation in resolve_saved_ops([ATTENTION])}
    assert {"aten._scaled_dot_product_flash_attention.default", ATTENTION} < names
    assert resolve_saved_ops([PRODUCT, PRODUCT]) == [torch.ops.aten.mm.default]


@pytest.mark.parametrize("name", ["aten.no_such_operation.default", "aten.mm.no_such_overload", "mm", "", "aten"])
def test_unknown_operations(name: str) -> None:
    with pytest.raises(UnknownOperation, match="import"):
        resolve_saved_ops([name])
