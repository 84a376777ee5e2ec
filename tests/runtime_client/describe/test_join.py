"""Gradients of inputs that several blocks use: when autograd adds them up under FSDP2."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from benchmarks.small_models import MODELS
from planner.schema import KeptBy, Liveness, ModelDescription, Polynomial
from runtime_client.describe import TrainingExample, describe, pipeline, token_inputs
from runtime_client.describe.join import join_inputs
from runtime_client.describe.kernels import AcceleratorKernels, ZeroScalars, eager_masks
from runtime_client.describe.prepare import prepare_parameters
from runtime_client.dryrun.host_reads import PlausibleReads

DIM, POINT = 8, (2, 16)
SCALARS = 2 * 4
"""The loss and its gradient are alive all the time."""
NAMES = ("t5", "whisper")


class CrossBlock(nn.Module):
    """Adds to `x` what it makes of two inputs that all blocks get."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: Tensor, *, memory: Tensor, table: Tensor) -> Tensor:
        return x + self.down(memory) + table.square()


class EncoderDecoder(nn.Module):
    """`memory` is (batch, sequence, DIM), `table` is (sequence, DIM); both require grad."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, DIM)
        self.encoder = nn.Linear(DIM, DIM, bias=False)
        self.positions = nn.Embedding(64, DIM)
        self.layers = nn.ModuleList(CrossBlock() for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        memory, table = self.encoder(x.sin()), self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, memory=memory, table=table)
        return x


@pytest.fixture(scope="module")
def layers() -> list[Liveness]:
    def build() -> TrainingExample:
        return TrainingExample(
            model=EncoderDecoder(), inputs=token_inputs, loss=lambda output, *_: output.square().sum()
        )

    model = describe(build, name="cross", micro_batch=2, sequence=32, param_dtype=None)
    return [model.kinds[call.kind].none for call in model.calls if call.path.startswith("layers.")]


def test_gradients_wait_for_the_end_of_the_block(layers: list[Liveness]) -> None:
    """In float32 gradients of `x` and `memory` take 32 bs bytes, that of `table` 32 s.

    Autograd has sums of what later blocks gave, and holds what this one gives (`c`) until the last sum is made:
    new sum of memory, out of place: the old one, c of both; then the new sum of table: the old one, c of both.
    """
    for layer in layers[:-1]:
        assert layer.after_backward == Polynomial(one=SCALARS, bs=64, s=32)
        assert layer.before_sums == Polynomial(bs=32, s=32)
        assert layer.in_sums == (Polynomial(bs=64, s=32), Polynomial(bs=32, s=64))


def test_what_comes_first_is_added_to_nothing(layers: list[Liveness]) -> None:
    assert layers[-1].after_backward == Polynomial(one=SCALARS, bs=64, s=32)
    assert layers[-1].before_sums == Polynomial()
    assert layers[-1].in_sums == ()


def test_a_tensor_that_one_block_uses_changes_nothing(described: ModelDescription) -> None:
    for kind in described.kinds.values():
        for liveness in filter(None, (kind.none, kind.full)):
            assert (liveness.before_sums, liveness.in_sums) == (Polynomial(), ())


@pytest.fixture(scope="module")
def towers() -> Iterator[dict[str, ModelDescription]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "with_selective", lambda subject, point_set, traces, plain: list(traces))
        patch.setattr(pipeline, "trace_parts", lambda *_: None)
        yield {
            name: describe(MODELS[name].build, name=name, micro_batch=2, sequence=16, param_dtype=None)
            for name in NAMES
        }


def bytes_in_post_backwards(
    name: str, live_bytes: Callable[..., Any], as_unit: Callable[..., None], *, checkpointed: bool
) -> dict[str, int]:
    """Bytes beside parameters, buffers and inputs in the post-backward of each block, as FSDP2 would call it."""
    found: dict[str, int] = {}
    with FakeTensorMode(), AcceleratorKernels(), eager_masks(), PlausibleReads():
        with ZeroScalars():
            example = MODELS[name].build()
        model = example.model.train()
        prepare_parameters(model, None)
        for path in MODELS[name].blocks:
            parent, _, key = path.rpartition(".")
            block = model.get_submodule(path)
            unit = checkpoint_wrapper(block, preserve_rng_state=False) if checkpointed else block
            as_unit(unit, lambda path=path: found.update({path: live.now}))
            model.get_submodule(parent)._modules[key] = unit
        args, kwargs = example.inputs(*POINT)
        with live_bytes(*model.parameters(), *model.buffers(), *args, *kwargs.values()) as live:
            loss = example.loss(model(*args, **kwargs), args, kwargs)
            torch.autograd.graph._engine_run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
    return found


def described_bytes(model: ModelDescription, path: str, *, checkpointed: bool) -> int:
    """What earlier calls keep, gradients on their way, and those of parameters that exist by then."""
    kinds = [model.kinds[call.kind] for call in model.calls]
    policies = [(kind.full if checkpointed else None) or kind.none for kind in kinds]
    index = next(index for index, call in enumerate(model.calls) if call.path == path)
    kept = sum(policy.kept_bytes(*POINT) for policy in policies[:index])
    kept += sum(
        tensor.size_bytes.at(*POINT)
        for tensor in model.shared
        if tensor.first_call < index and (checkpointed or tensor.kept_by is not KeptBy.FULL)
    )
    made = {f"{call.path}.{name}" for call in model.calls[index:] for name in model.kinds[call.kind].gradient_order}
    gradients = sum(4 * parameter.num_elements for name, parameter in model.iter_parameters() if name in made)
    own = policies[index]
    return kept + gradients + own.after_backward.at(*POINT) + own.before_sums.at(*POINT)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_in_post_backward_are_those_that_fsdp2_finds(
    name: str,
    checkpointed: bool,
    towers: dict[str, ModelDescription],
    live_bytes: Callable[..., Any],
    as_unit: Callable[..., None],
) -> None:
    found = bytes_in_post_backwards(name, live_bytes, as_unit, checkpointed=checkpointed)
    assert set(found) == set(MODELS[name].blocks)
    for path, size_bytes in found.items():
        assert described_bytes(towers[name], path, checkpointed=checkpointed) == size_bytes


def test_structures_around_joined_tensors_stay_as_they_are() -> None:
    needs_grad, plain = torch.ones(2, requires_grad=True), torch.ones(2)
    passed: list[str] = []
    cache = object()
    args, kwargs = join_inputs(
        (needs_grad, [plain, 3]), {"pair": (needs_grad, None), "cache": cache}, lambda: passed.append("here")
    )
    assert args[1] == [plain, 3]
    assert args[1][0] is plain
    assert kwargs["cache"] is cache
    assert type(kwargs["pair"]) is tuple
    assert args[0] is not needs_grad
    assert args[0].data_ptr() == needs_grad.data_ptr()
    (args[0] * kwargs["pair"][0]).sum().backward()
    assert passed == ["here"]
    assert needs_grad.grad is not None
    assert needs_grad.grad.tolist() == [2.0, 2.0]


def test_nothing_is_joined_without_a_gradient() -> None:
    args = (torch.ones(2), [torch.ones(2)])
    assert join_inputs(args, {}, lambda: None)[0] is args
    with torch.no_grad():
        args = (torch.ones(2, requires_grad=True), [])
        assert join_inputs(args, {}, lambda: None)[0] is args
