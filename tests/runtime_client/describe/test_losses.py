"""Losses over large vocabularies: whole, in chunks, and fused with the head."""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.modules.linear_cross_entropy as torch_loss
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from planner.schema import LOSS_PATH, CallKind, ModelDescription
from runtime_client.describe import HiddenWorkspace, NotDescribable, TrainingExample, describe
from runtime_client.describe.chunked_loss import workspace_bytes

VOCAB, DIM, NUM_CHUNKS = 4000, 32, 4
POINT = (2, 64)
LossOfHidden = Callable[[Any, Tensor, Tensor], Tensor]
"""Of the head, hidden states and labels."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class HeadWithoutModule:
    """What MemTracker bears to be called several times outside the root."""

    def __init__(self, head: nn.Linear) -> None:
        self.weight = head.weight

    def __call__(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)


class Decoder(nn.Module):
    """Returns the loss, or hidden states where there is none."""

    def __init__(self, vocab: int = VOCAB, loss: LossOfHidden | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, DIM)
        self.layers = nn.Sequential(Layer(), Layer(), Layer())
        self.head = nn.Linear(DIM, vocab, bias=False)
        self.loss = loss

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.layers(self.tokens(ids)).flatten(0, 1)
        return hidden if self.loss is None else self.loss(self.head, hidden, labels.flatten())


def whole(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), labels)


def one_chunk(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), labels, reduction="sum")


def in_chunks(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    pairs = zip(hidden.chunk(NUM_CHUNKS), labels.chunk(NUM_CHUNKS), strict=True)
    return torch.stack([one_chunk(head, *pair) for pair in pairs]).sum() / labels.numel()


def in_recomputed_chunks(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    pairs = zip(hidden.chunk(NUM_CHUNKS), labels.chunk(NUM_CHUNKS), strict=True)
    losses = [checkpoint(one_chunk, head, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(losses).sum() / labels.numel()


def fused(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    return F.linear_cross_entropy(hidden, head.weight, labels)


LOSSES = {function.__name__: function for function in (whole, in_chunks, in_recomputed_chunks, fused)}


def token_pairs(micro_batch: int, sequence: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(torch.zeros(micro_batch, sequence, dtype=torch.long) for _ in range(2)), {}


def example(loss: LossOfHidden, *, inside: bool, vocab: int = VOCAB) -> TrainingExample:
    """The loss is part of the model's forward (`inside`) or comes after it."""
    model = Decoder(vocab, loss if inside else None)
    return TrainingExample(
        model=model,
        inputs=token_pairs,
        loss=lambda output, args, _: output if inside else loss(model.head, output, args[1].flatten()),
    )


def described(loss: LossOfHidden, *, inside: bool, vocab: int = VOCAB) -> ModelDescription:
    return describe(
        lambda: example(loss, inside=inside, vocab=vocab), name="loss", micro_batch=POINT[0], sequence=POINT[1]
    )


def measured_peak_bytes(trained: TrainingExample, micro_batch: int, sequence: int) -> int:
    model = trained.model.to(torch.bfloat16)
    args, kwargs = trained.inputs(micro_batch, sequence)
    tracker = MemTracker()
    tracker.track_external(model, *args)
    outside = sum(tensor.nbytes for tensor in (*model.parameters(), *args))
    if model.loss is None:
        model.head = HeadWithoutModule(model._modules.pop("head"))
    with tracker:
        trained.loss(model(*args), args, kwargs).backward()
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values()) - outside


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_peak_is_that_of_the_memory_tracker(loss: str, inside: bool, peak_bytes: Callable[..., int]) -> None:
    model = described(LOSSES[loss], inside=inside)
    for point in (POINT, (3, 96)):
        measured = measured_peak_bytes(example(LOSSES[loss], inside=inside), *point)
        assert peak_bytes(model, *point, lambda path: False) == pytest.approx(measured, rel=0.001)


def moments_above_kept(model: ModelDescription, kind: CallKind) -> list[int]:
    kept = sum(model.kinds[call.kind].none.kept_bytes(*POINT) for call in model.calls[:-1])
    return [kept + moment.live_bytes.at(*POINT) for moment in (*kind.none.forward, *kind.none.backward)]


def test_the_loss_over_128k_classes_is_the_peak_to_the_byte() -> None:
    """Its gradient in float32 and log-probabilities, beside the logits in both types."""
    model = described(whole, inside=False, vocab=128256)
    (loss,) = [model.kinds[call.kind] for call in model.calls if call.path == LOSS_PATH]
    peak = max(moments_above_kept(model, loss))
    assert peak == measured_peak_bytes(example(whole, inside=False, vocab=128256), *POINT)
    logits = POINT[0] * POINT[1] * 128256
    assert logits * 12 < peak < logits * 12.1


def test_a_head_that_runs_in_chunks_is_a_call_for_each() -> None:
    model = described(in_chunks, inside=True)
    calls = [(call.path, model.kinds[call.kind]) for call in model.calls]
    heads = [kind for path, kind in calls if path == "head"]
    assert len(heads) == NUM_CHUNKS
    assert [kind.gradient_order for kind in heads] == [("weight",), (), (), ()]
    products = [region.forward.flops.at(*POINT) for kind in heads for region in kind.regions]
    assert products == [2 * POINT[0] * POINT[1] * DIM * VOCAB // NUM_CHUNKS] * NUM_CHUNKS


def test_a_head_that_the_loss_runs_has_its_gradient_there() -> None:
    model = described(in_chunks, inside=False)
    assert "head" not in {call.path for call in model.calls}
    loss = model.kinds[model.calls[-1].kind]
    assert loss.gradient_order == ("head.weight",)
    assert loss.none.backward[-1].num_gradients == 1


def fused_in_chunks(head: Any, hidden: Tensor, labels: Tensor, **arguments: Any) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=16, chunking_method=None)
    return F.linear_cross_entropy(hidden, head.weight, labels, options=options, **arguments)


def test_the_chunked_operation_keeps_gradients_and_needs_a_workspace() -> None:
    model = described(fused_in_chunks, inside=False)
    loss = model.kinds[model.calls[-1].kind]
    tokens = POINT[0] * POINT[1]
    gradients = 2 * VOCAB * DIM + 2 * tokens * DIM
    assert sum(t.size_bytes.at(*POINT) for t in loss.none.saved) == pytest.approx(gradients, abs=100)
    (region,) = [region for region in loss.regions if region.kind == "matmul"]
    assert region.forward.flops.at(*POINT) == 3 * 2 * tokens * VOCAB * DIM
    peak = max(moment.live_bytes.at(*POINT) for moment in loss.none.forward)
    logits = 16 * VOCAB
    assert peak > gradients + logits * (4 + 2 + 2)
    assert peak == pytest.approx(gradients + logits * (4 + 2 + 2), rel=0.05)


def test_the_chunked_operation_without_reduction_is_refused() -> None:
    def loss(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
        return fused_in_chunks(head, hidden, labels, reduction="none").sum()

    with pytest.raises(HiddenWorkspace, match="mean"):
        described(loss, inside=False)
    assert issubclass(HiddenWorkspace, NotDescribable)


@pytest.fixture(scope="module")
def loss_on_cuda() -> Iterator[Callable[..., tuple[Tensor, ...]]]:
    """Torch's own loop over the chunks, told that it is on CUDA; its products into another type do nothing."""
    source = inspect.getsource(torch_loss).partition("@torch.library.custom_op")[0]
    told = source.replace('is_cuda = device.type == "cuda"', "is_cuda = True")
    told = told.replace("torch.mm(mat1, mat2, out_dtype=out.dtype, out=out)", "pass")
    assert told.count("is_cuda = True") == told.count("            pass\n") == 1
    module = types.ModuleType("loss_on_cuda")
    sys.modules[module.__name__] = module
    exec(compile(told, module.__name__, "exec"), vars(module))
    yield vars(module)["_linear_cross_entropy_batch_chunked_accumulator"]
    del sys.modules[module.__name__]


@pytest.mark.parametrize("grads", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("policy", ["compact", "balanced", "accurate"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", [(1024, 256, 8000, 64), (512, 512, 256, 128), (128, 64, 2048, 128)])
def test_workspace_is_that_of_torch(
    loss_on_cuda: Callable[..., tuple[Tensor, ...]],
    live_bytes: Callable[..., Any],
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    policy: str,
    grads: tuple[bool, bool],
) -> None:
    num_rows, num_features, num_classes, chunk = sizes
    with FakeTensorMode(), torch.no_grad():
        tensors = [torch.empty(size, num_features, dtype=dtype) for size in (num_rows, num_classes)]
        target = torch.empty(num_rows, dtype=torch.long)
        fixed = ("mean", -100, 0.0, chunk, policy, torch.float32)
        with live_bytes(*tensors, target) as live:
            results = loss_on_cuda(*tensors, target, None, None, *fixed, *grads, False)
        returned = sum(result.untyped_storage().nbytes() for result in results)
    options = torch.nn.LinearCrossEntropyOptions(
        acc_policy=policy, acc_dtype=torch.float32, chunking_method=None, batch_chunk_size=chunk
    )
    expected = workspace_bytes(
        options,
        num_rows=num_rows,
        num_features=num_features,
        num_classes=num_classes,
        dtype=dtype,
        input_grad=grads[0],
        weight_grad=grads[1],
    )
    assert expected == pytest.approx(live.peak - returned, rel=0.01)
