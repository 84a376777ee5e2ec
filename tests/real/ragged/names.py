"""One rank: what a user sees of a ragged model between steps; prints the name of each check that held."""

import io
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.optim import SGD, AdamW

from runtime_client.apply import AppliedPlan, apply_decisions
from runtime_client.fingerprint import fingerprint
from runtime_client.ragged.errors import FrozenBuffer
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import decisions, unit
from tests.runtime_client.ragged.layouts import one, rows, with_layouts

build = partial(seeded_llama, num_blocks=2, tied=True)
UNITS = (unit("layers.0"), unit("layers.1"), unit(""))


def sharded(model: Llama | None = None, **layout: object) -> AppliedPlan:
    model = model or build()
    ranks = dist.get_world_size()
    made = with_layouts(model, decisions(UNITS, shard=ranks), **{"atom": one, "spare": 3, **layout})
    return apply_decisions(model, made, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)))


def loss(model: nn.Module) -> Tensor:
    tokens = torch.arange(18).view(2, 9) % 61
    return functional.cross_entropy(model(tokens).view(-1, 61), tokens.view(-1))


def gathered(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().full_tensor() for name, parameter in model.named_parameters()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(value, b[name]) for name, value in a.items())


def random(model: Llama, seed: int) -> Llama:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def names_and_values() -> None:
    whole = dict(build().named_parameters())
    applied = sharded()
    assert equal(gathered(applied.model), {name: value.detach() for name, value in whole.items()})
    assert fingerprint(applied.model) == fingerprint(build())
    assert applied.model.head.weight is applied.model.embedding.weight
    assert [name for name, _ in applied.model.named_modules()] == [name for name, _ in build().named_modules()]
    optimizer = AdamW(applied.model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == list(whole)


def local_pieces() -> None:
    applied = sharded(atom=rows)
    for name, parameter in applied.model.named_parameters():
        pieces = applied.local_pieces(name)
        flat = parameter.full_tensor().reshape(-1)
        mine = [flat[piece.offset : piece.offset + piece.num_elements] for piece in pieces]
        assert torch.equal(torch.cat([*mine, flat[:0]]), parameter.to_local().reshape(-1)), name
    held = torch.tensor(
        [sum(piece.num_elements for n in gathered(applied.model) for piece in applied.local_pieces(n))]
    )
    dist.all_reduce(held)
    assert held.item() == sum(parameter.numel() for parameter in build().parameters())


def state_dict_at_any_moment() -> None:
    """Between forward and backward the root is gathered; its state dict shows pieces all the same."""
    model = sharded().model
    before = gathered(model)
    value = loss(model)
    state = model.state_dict()
    assert list(state) == list(build().state_dict())
    assert all(torch.equal(state[name].full_tensor(), before[name]) for name in before)
    loss(model).backward()
    del value
    assert all(parameter.grad is not None for parameter in model.parameters())


def load_whole_tensors() -> None:
    model, other = sharded().model, random(build(), 1)
    model.load_state_dict(other.state_dict())
    assert equal(gathered(model), {name: value.detach() for name, value in other.named_parameters()})
    assert torch.allclose(loss(model), loss(other))


def load_another_layout() -> None:
    model, other = sharded().model, sharded(random(build(), 1), atom=rows, reverse=True).model
    model.load_state_dict(other.state_dict())
    assert equal(gathered(model), gathered(other))


def load_even_shards() -> None:
    model, other = sharded().model, random(build(), 1)
    model.load_state_dict(fully_shard(other).state_dict())
    assert equal(gathered(model), gathered(other))
    other = fully_shard(random(build(), 2))
    other.load_state_dict(model.state_dict())
    assert equal(gathered(model), gathered(other))


def load_by_assignment() -> None:
    model, other = sharded().model, random(build(), 1)
    model.load_state_dict(other.state_dict(), assign=True)
    assert equal(gathered(model), {name: value.detach() for name, value in other.named_parameters()})
    assert torch.allclose(loss(model), loss(other))
    trains(model)


def torch_save() -> None:
    """Each rank its own, for the same ranks and layout."""
    model, other = sharded().model, sharded(random(build(), 1)).model
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=False))
    assert equal(gathered(other), gathered(model))


def full_state_dict() -> None:
    model = sharded().model
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    assert equal(state, build().state_dict())
    other = sharded(random(build(), 3), atom=rows).model
    set_model_state_dict(other, state, options=options)
    assert equal(gathered(other), gathered(model))


def meta_device() -> None:
    with torch.device("meta"):
        model = build()
    applied = sharded(model)
    applied.model.to_empty(device="cpu")
    applied.model.load_state_dict(build().state_dict())
    assert equal(gathered(applied.model), gathered(sharded().model))
    trains(applied.model)


def initialised_when_sharded() -> None:
    """On the meta device first; the same seed gives the weights of an unsharded model."""
    with torch.device("meta"):
        model = build()
    applied, twin = sharded(model), build()
    applied.model.to_empty(device="cpu")
    for which in (applied.model, twin):
        torch.manual_seed(5)
        for module in which.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    assert equal(gathered(applied.model), {name: value.detach() for name, value in twin.named_parameters()})
    trains(applied.model)


def another_element_type() -> None:
    model = sharded().model.double()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    trains(model)


def moved_nowhere() -> None:
    model = sharded().model
    before = dict(model.named_parameters())
    model.to("cpu")
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    trains(model)


def freezing_later() -> None:
    model = sharded().model
    loss(model).backward()
    model.zero_grad()
    frozen = model.layers[0].attention.q.weight
    frozen.requires_grad_(False)
    loss(model).backward()
    assert frozen.grad is None
    assert all(p.grad is not None for p in model.parameters() if p is not frozen)


def thawing_later() -> None:
    """Refused; freezing a trainable one and thawing it again is not."""
    model = build()
    model.norm.requires_grad_(False)
    model = sharded(model).model
    model.norm.weight.requires_grad_(True)
    with pytest.raises(FrozenBuffer, match=r"'norm\.weight' was frozen when the plan was applied"):
        loss(model)
    model = sharded().model
    weight = model.layers[0].attention.q.weight
    for requires_grad in (False, True):
        weight.requires_grad_(requires_grad)
        loss(model).backward()
        assert (weight.grad is not None) is requires_grad


def optimizer_in_backward() -> None:
    model, twin = sharded().model, build()
    for parameter in model.parameters():
        optimizer = SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: step(p, optimizer))
    loss(model).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer = SGD(twin.parameters(), lr=0.1)
    loss(twin).backward()
    optimizer.step()
    assert all(torch.allclose(value, gathered(model)[name]) for name, value in twin.named_parameters())


def step(parameter: Tensor, optimizer: SGD) -> None:
    optimizer.step()
    parameter.grad = None


def errors() -> None:
    weight = sharded().model.layers[0].attention.q.weight
    with pytest.raises(NotImplementedError, match=r"ragged tensor of shape \(32, 32\)"):
        weight @ weight
    with torch.device("meta"):
        model = build()
    applied = sharded(model)
    with pytest.raises(RuntimeError, match=r"meta device: \['buffer 2 \(embedding.weight, norm.weight\)'\]"):
        loss(applied.model)


def evaluation() -> None:
    model = sharded().model
    with torch.no_grad():
        first, second = loss(model), loss(model)
    assert torch.equal(first, second)
    assert torch.allclose(first, loss(build()))
    aliased = apply_aliased()
    with torch.no_grad():
        assert torch.equal(loss(aliased), first)
        assert torch.equal(loss(aliased), first)
    trains(aliased)


def apply_aliased() -> nn.Module:
    model, ranks = build(), dist.get_world_size()
    made = with_layouts(model, decisions(UNITS, shard=ranks), spare=3, alias=True)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    return apply_decisions(model, made, mesh).model


def trains(model: nn.Module) -> None:
    optimizer = AdamW(model.parameters(), lr=0.01)
    before = loss(model)
    before.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert loss(model) < before


CHECKS: tuple[Callable[[], None], ...] = (
    names_and_values,
    local_pieces,
    state_dict_at_any_moment,
    load_whole_tensors,
    load_another_layout,
    load_even_shards,
    load_by_assignment,
    torch_save,
    full_state_dict,
    meta_device,
    initialised_when_sharded,
    another_element_type,
    moved_nowhere,
    freezing_later,
    thawing_later,
    optimizer_in_backward,
    errors,
    evaluation,
)


def main() -> None:
    dist.init_process_group("gloo")
    wanted = sys.argv[1:]
    for check in CHECKS:
        if not wanted or check.__name__ in wanted:
            check()
            if dist.get_rank() == 0:
                print(check.__name__, flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
