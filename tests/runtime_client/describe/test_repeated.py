"""A block that runs several times is a call for each run."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from planner.schema import ModelDescription
from runtime_client.describe import TrainingExample, describe, token_inputs
from runtime_client.saved_ops import selective_contexts

NUM_RUNS = 3
Policy = bool | tuple[str, ...]
POLICIES: dict[str, Policy] = {"none": False, "full": True, "selective": ("aten.mm.default",)}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 96, bias=False), nn.Linear(96, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x).sin()))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.layers = nn.ModuleList([Layer()] * NUM_RUNS)
        self.head = nn.Linear(32, 16, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class RunsAgain(Shared):
    """Its first block runs once more after the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_RUNS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in (*self.layers, self.layers[0]):
            x = layer(x)
        return self.head(x)


def described(model: Callable[[], nn.Module]) -> ModelDescription:
    build = lambda: TrainingExample(model=model(), inputs=token_inputs)  # noqa: E731
    return describe(build, name="shared", micro_batch=2, sequence=64)


def measured_peak_bytes(ids: Tensor, policy: Policy) -> int:
    model = Shared().to(torch.bfloat16)
    if policy:
        arguments = {} if policy is True else {"context_fn": partial(selective_contexts, policy)}
        model.layers = nn.ModuleList([checkpoint_wrapper(model.layers[0], **arguments)] * NUM_RUNS)
    tracker = MemTracker()
    tracker.track_external(model, ids)
    outside = sum(p.nbytes for p in model.parameters()) + ids.nbytes
    with tracker:
        F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten()).backward()
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values()) - outside


@pytest.mark.parametrize("policy", POLICIES)
def test_peak_is_that_of_the_memory_tracker(policy: str, peak_bytes: Callable[..., int]) -> None:
    model = described(Shared)
    for point in ((2, 64), (3, 96)):
        measured = measured_peak_bytes(torch.zeros(*point, dtype=torch.long), POLICIES[policy])
        predicted = peak_bytes(model, *point, lambda path: path == "layers.0" and POLICIES[policy])
        assert predicted == pytest.approx(measured, rel=0.001)


def test_gradients_are_complete_in_the_first_run() -> None:
    for model in (described(Shared), described(RunsAgain)):
        runs = [model.kinds[call.kind] for call in model.calls if call.path == "layers.0"]
        assert [len(run.gradient_order) for run in runs] == [2, *[0] * (len(runs) - 1)]
        products = {sum(region.backward.flops.at(2, 64) for region in run.regions) for run in runs}
        assert len(products) == 1


def test_order_of_calls() -> None:
    blocks = [call.path for call in described(RunsAgain).calls if "layers" in call.path]
    assert blocks == ["layers.0", "layers.1", "layers.2", "layers.0"]
