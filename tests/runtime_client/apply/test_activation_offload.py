"""Activation offload on one rank: the same numbers to the last bit, and device tensors that are really gone."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from planner.schema import UnitPlan
from runtime_client.apply import AppliedPlan, apply_decisions
from runtime_client.errors import UnsupportedPlan
from tests.real.llama import seeded_llama
from tests.runtime_client.plans import decisions, unit

LAYERS = tuple(f"layers.{index}" for index in range(4))
BLOCKS = (*map(unit, LAYERS), unit(""))
NESTED = (
    *(unit(f"{layer}.{part}") for layer in LAYERS[:2] for part in ("attention", "feed_forward")),
    *BLOCKS,
)
GROUPED = (unit("layers.0", "layers.1"), unit("layers.2"), unit("norm", "head"), unit(""))
OFFLOAD, NONE, FULL = "offload", "none", "full"


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One rank, which really computes."""
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


def policies(*of_layers: str) -> dict[str, str]:
    return dict(zip(LAYERS, of_layers, strict=True))


def applied(
    model: nn.Module, chosen: dict[str, str], units: tuple[UnitPlan, ...] = BLOCKS, **fields: Any
) -> AppliedPlan:
    activations = tuple({"module": path, "policy": policy} for path, policy in chosen.items())
    fields = {"num_micro_batches": 2, **fields}
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    return apply_decisions(model, decisions(units, shard=1, activations=activations, **fields), mesh)


def batches(count: int = 2) -> Tensor:
    return torch.randint(0, 61, (count, 2, 13), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1]).float()
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.to_local() for name, grad in found.items() if isinstance(grad, DTensor)}


def trained(plan: AppliedPlan) -> list[Tensor]:
    """Losses and gradients of two steps of two micro-batches, and the parameters after them."""
    optimizer = torch.optim.AdamW([p for p in plan.model.parameters() if p.requires_grad], lr=1e-2)
    seen: list[Tensor] = []
    for _ in range(2):
        for index, tokens in enumerate(batches()):
            plan.begin_micro_batch(index)
            loss = loss_of(plan.model, tokens)
            loss.backward()
            seen.append(loss.detach())
        seen += [gradient.clone() for gradient in gradients(plan.model).values()]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [p.to_local().detach() for p in plan.model.parameters() if isinstance(p, DTensor)]


def assert_equal(mine: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(mine) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


class Copies(TorchDispatchMode):
    """The labels of copies in order, and the bytes that each copied."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str] = []
        self.sizes: list[int] = []
        self._open: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        match func._schema.name:
            case "profiler::_record_function_enter_new":
                self._open.append(args[0])
                if args[0].startswith("Shardwright::"):
                    self.labels.append(args[0].removeprefix("Shardwright::"))
                    self.sizes.append(0)
            case "profiler::_record_function_exit":
                self._open.pop()
            case "aten::copy_" if self._open and self._open[-1].startswith("Shardwright::"):
                self.sizes[-1] += result.nbytes
        return result

    def __enter__(self) -> "Copies":
        self._multithreading = torch.autograd.set_multithreading_enabled(False)  # backward in this thread
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.autograd.set_multithreading_enabled(True)


@dataclass
class Watch:
    """Where the down projection of a block reads from: saved by that block alone."""

    storages: dict[int, StorageWeakRef] = field(default_factory=dict)

    def on(self, model: nn.Module) -> "Watch":
        for index, layer in enumerate(model.layers):
            layer.feed_forward.down.register_forward_pre_hook(self._noting(index))
        return self

    def _noting(self, index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if index not in self.storages or self.storages[index].expired():
                self.storages[index] = StorageWeakRef(args[0].untyped_storage())

        return note

    def alive(self) -> list[int]:
        return [index for index, storage in self.storages.items() if not storage.expired()]


@pytest.mark.parametrize("units", [BLOCKS, NESTED, GROUPED], ids=["blocks", "nested", "grouped"])
@pytest.mark.parametrize(
    "chosen",
    [
        policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD),
        policies(OFFLOAD, FULL, NONE, OFFLOAD),
        {"layers.1.feed_forward": OFFLOAD, "layers.2": OFFLOAD, "head": OFFLOAD, "embedding": OFFLOAD},
    ],
    ids=["all", "mixed", "parts"],
)
@pytest.mark.parametrize("sync", ["every_micro_batch", "last_micro_batch"])
def test_losses_and_gradients_are_equal_to_the_last_bit(chosen, units, sync):
    runtime = {"gradient_sync": sync}
    assert_equal(
        trained(applied(seeded_llama(), chosen, units, runtime=runtime)),
        trained(applied(seeded_llama(), {}, units, runtime=runtime)),
    )


@pytest.mark.parametrize("precision", [{"param_dtype": "bfloat16", "reduce_dtype": "float32"}, {}])
@pytest.mark.parametrize("frozen", ["embedding", "layers.0", "norm"])
def test_frozen_modules_and_mixed_precision(precision, frozen):
    def one(chosen: dict[str, str]) -> list[Tensor]:
        model = seeded_llama()
        model.get_submodule(frozen).requires_grad_(False)
        return trained(applied(model, chosen, **precision))

    assert_equal(one(policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD)), one({}))


def test_copies_go_out_in_order_and_come_back_one_module_ahead():
    plan = applied(seeded_llama(), policies(OFFLOAD, OFFLOAD, NONE, OFFLOAD))
    events = Copies()
    for index in (0, 1, 3):
        plan.model.layers[index].attention.register_full_backward_hook(
            lambda *_, index=index: events.labels.append(f"backward of {index}")
        )
    for tokens in batches():
        events.labels.clear()
        with events:
            loss_of(plan.model, tokens).backward()
        assert events.labels == [
            "activation_out (layers.0)",
            "activation_out (layers.1)",
            "activation_out (layers.3)",
            "activation_in (layers.3)",
            "activation_in (layers.1)",
            "backward of 3",
            "activation_in (layers.0)",
            "backward of 1",
            "backward of 0",
        ]


def test_device_tensors_are_held_until_the_next_call_is_through_its_forward():
    model = seeded_llama()
    plan = applied(model, policies(OFFLOAD, NONE, OFFLOAD, OFFLOAD))
    watch, seen = Watch().on(model), []
    for layer in (*model.layers, model.norm, model.head):
        layer.register_forward_pre_hook(lambda *_: seen.append(watch.alive()))
    loss = loss_of(plan.model, batches()[0])
    seen.append(watch.alive())
    assert seen == [[], [0], [1], [1, 2], [1, 3], [1], [1]]
    loss.backward()
    assert watch.alive() == []


def test_with_nothing_after_it_a_module_lets_go_where_the_model_ends():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    kept: list[StorageWeakRef] = []
    model[1][2].register_forward_pre_hook(lambda _, args: kept.append(StorageWeakRef(args[0].untyped_storage())))
    plan = applied(model, {"1": OFFLOAD}, (unit(""),))
    loss = plan.model(torch.randn(2, 4)).sum()
    assert kept[0].expired()
    loss.backward()
    assert gradients(model)["1.0.weight"].abs().sum() > 0


def test_fetched_tensors_go_with_their_last_use():
    model = seeded_llama()
    plan = applied(model, policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD))
    fetched: list[StorageWeakRef] = []
    alive: list[int] = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func._schema.name == "aten::empty_like":
                fetched.append(StorageWeakRef(result.untyped_storage()))
            return result

    for layer in model.layers:
        layer.attention_norm.register_full_backward_hook(
            lambda *_: alive.append(sum(not one.expired() for one in fetched))
        )
    loss = loss_of(plan.model, batches()[0])
    with torch.autograd.set_multithreading_enabled(False), Made():
        loss.backward()
    per_layer = len(fetched) // 4
    assert len(fetched) == 4 * per_layer
    assert max(alive) < 2 * per_layer, "a layer's own are mostly gone by then, those of the one before are there"
    gc.disable()
    assert all(one.expired() for one in fetched), "without a garbage collection"
    gc.enable()


def test_without_gradients_nothing_is_copied():
    def one(chosen: dict[str, str]) -> list[Tensor]:
        plan = applied(seeded_llama(), chosen)
        with Copies() as copies, torch.no_grad():
            loss_of(plan.model, batches()[0])
        assert copies.labels == []
        return trained(plan)

    assert_equal(one(policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD)), one({}))


def test_a_module_without_a_backward_copies_nothing():
    model = seeded_llama()
    model.embedding.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    plan = applied(model, policies(OFFLOAD, OFFLOAD, NONE, NONE))
    with Copies() as copies:
        loss_of(plan.model, batches()[0]).backward()
    assert copies.labels == ["activation_out (layers.1)", "activation_in (layers.1)"]


def test_inputs_of_the_model_stay_but_for_the_copies_that_are_cast():
    tensor, sizes = 4 * 8, {}
    for dtype, item in (("float32", 4), ("bfloat16", 2)):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        plan = applied(model, {"0": OFFLOAD, "1": OFFLOAD}, (unit(""),), param_dtype=dtype)
        with Copies() as copies:
            plan.model(torch.randn(4, 8)).sum().backward()
            copies.sizes.clear()
            plan.model(torch.randn(4, 8)).sum().backward()
        sizes[dtype] = [size / item for size in copies.sizes]
    assert sizes == {"float32": [tensor, tensor], "bfloat16": [tensor] * 4}, "out, and in again"


def test_a_forward_that_fails_leaves_nothing_behind():
    model = seeded_llama()
    plan = applied(model, policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD))
    expected = trained(applied(seeded_llama(), {}))
    watch = Watch().on(model)
    original = model.layers[2].feed_forward.forward

    def fail(x: Tensor) -> Tensor:
        raise ArithmeticError

    model.layers[2].feed_forward.forward = fail
    with pytest.raises(ArithmeticError):
        loss_of(plan.model, batches()[0])
    gc.collect()
    assert watch.alive() == []
    model._get_fsdp_state()._reset_iter_state()
    model.layers[2].feed_forward.forward = original
    assert_equal(trained(plan), expected)


def test_a_backward_that_never_comes_leaves_nothing_behind():
    def one(chosen: dict[str, str]) -> list[Tensor]:
        model = seeded_llama()
        plan = applied(model, chosen)
        watch = Watch().on(model)
        loss_of(plan.model, batches()[0])
        assert watch.alive() == []
        return trained(plan)

    assert_equal(one(policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD)), one({}))


def test_a_backward_that_stops_amid_the_modules_leaves_nothing_behind():
    """By then the next module's tensors are on their way back, and nobody is going to use them."""

    def one(chosen: dict[str, str]) -> list[Tensor]:
        model = seeded_llama()
        plan = applied(model, chosen)
        inputs: list[Tensor] = []
        handle = model.layers[3].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        loss = loss_of(plan.model, batches()[0])
        handle.remove()
        (gradient,) = torch.autograd.grad(loss, inputs)
        model.zero_grad()
        return [gradient, *trained(plan)]

    assert_equal(one(policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD)), one({}))


def test_two_backwards_of_one_forward_and_two_forwards_before_a_backward():
    def one(chosen: dict[str, str]) -> list[Tensor]:
        model = seeded_llama()
        plan = applied(model, chosen)
        first, second = (loss_of(plan.model, tokens) for tokens in batches())
        second.backward(retain_graph=True)
        first.backward()
        second.backward()
        return list(gradients(model).values())

    assert_equal(one(policies(OFFLOAD, OFFLOAD, OFFLOAD, OFFLOAD)), one({}))


class Scaled(nn.Module):
    """Its multiplication saves the table and what it makes of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor, table: Tensor, memory: Tensor) -> Tensor:
        return (self.linear(x) * table + self.shift).tanh() * memory


class Tabled(nn.Module):
    """Blocks that share a table without and a tensor with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Scaled() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        table, memory = x.detach().sin(), self.encoder(x)
        for layer in self.layers:
            x = layer(x, table, memory)
        return x


def test_what_several_modules_save_stays_on_the_device():
    plan = applied(Tabled(), {f"layers.{index}": OFFLOAD for index in range(3)}, (unit(""),))
    sizes = []
    for _ in range(3):
        with Copies() as copies:
            plan.model(torch.randn(4, 8)).sum().backward()
        sizes.append(copies.sizes[:3])
    tensor = 4 * 8 * 4
    own = 3  # the input of the product, of the table's multiplication (none) and what tanh returns
    assert sizes[0][1] == own * tensor, "the first forward takes the tensor with a gradient along"
    assert sizes[1] == sizes[2] == [tensor, 2 * tensor, 2 * tensor], "the model's input is shared with the encoder"


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).add_(1))


@pytest.mark.parametrize("chosen", [{"first": OFFLOAD}, {}])
def test_a_saved_tensor_that_is_overwritten_is_an_error_as_ever(chosen):
    plan = applied(Overwriting(), chosen, (unit(""),))
    for _ in range(2):
        loss = plan.model(torch.randn(2, 4)).sum()
        with pytest.raises(RuntimeError, match=r"modified .*in-?\s?place"):
            loss.backward()
        plan.model._get_fsdp_state()._reset_iter_state()


@pytest.mark.parametrize(
    ("chosen", "match"),
    [
        (
            {"layers.0": OFFLOAD, "layers.0.attention": FULL},
            "'layers.0.attention' inside or around it has policy full",
        ),
        ({"layers.0.attention": OFFLOAD, "layers.0": OFFLOAD}, "inside or around it has policy offload"),
        ({"": OFFLOAD}, "the root takes no policy as a whole"),
        ({"layers": OFFLOAD}, "has no forward"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(chosen, match):
    with pytest.raises(UnsupportedPlan, match=match):
        applied(seeded_llama(), chosen)
