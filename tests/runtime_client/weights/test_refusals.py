"""What loading and initialising refuse, before anything of the model is touched."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.weights import initialise, load_safetensors, materialise, on_meta
from runtime_client.weights.errors import BuffersLost, CheckpointMismatch, CheckpointUnreadable, NoInitialiser
from tests.real.llama import Llama
from tests.runtime_client.apply.test_apply import plan_for, small


def build(**sizes: object) -> Llama:
    model = small(**sizes)
    model.layers[0].register_buffer("frequencies", torch.linspace(0, 1, 5), persistent=False)
    return model


def planned(model: Llama | None = None) -> AppliedPlan:
    with on_meta():
        model = model or build()
    return apply_plan(model, plan_for(model), device_type="cpu")


def untouched(applied: AppliedPlan) -> bool:
    return all(parameter.is_meta for parameter in applied.model.parameters())


def files(folder: Path, **changes: Tensor | None) -> Path:
    """Of the model, with tensors put in another's place or taken out."""
    state = {**build().state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    save_file({name: value for name, value in state.items() if value is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm__weight": None}, r"lacks 1: norm\.weight\. Give"),
        ({"other__weight": torch.ones(2)}, r"it has others, 1: other\.weight"),
        (
            {"norm__weight": torch.ones(9)},
            r"'norm\.weight' has shape \(9,\) in the checkpoint, \(8,\) in the model",
        ),
        ({"norm__weight": torch.ones(8, dtype=torch.int64)}, r"stored as torch\.int64 and the model has it in"),
        ({"norm__weight": torch.ones(8).to(torch.float8_e4m3fn)}, r"stored as torch\.float8_e4m3fn and"),
    ],
)
def test_a_checkpoint_of_another_model(
    world: int, tmp_path: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    applied = planned()
    with pytest.raises(CheckpointMismatch, match=message):
        load_safetensors(applied, files(tmp_path, **changes))
    assert untouched(applied)


def test_names_may_be_mapped_and_others_ignored(world: int, tmp_path: Path) -> None:
    state = {f"base.{name}": tensor for name, tensor in build().state_dict().items()}
    save_file({**state, "old.frequencies": torch.ones(5)}, tmp_path / "any.safetensors")
    applied = planned()
    loaded = load_safetensors(applied, tmp_path, rename=lambda name: f"base.{name}", ignore=["*.frequencies"])
    assert loaded.num_tensors == len(state)
    assert torch.equal(applied.model.head.weight.to_local(), build().head.weight[:4])


def test_a_checkpoint_that_is_not_there(world: int, tmp_path: Path) -> None:
    applied = planned()
    with pytest.raises(CheckpointUnreadable, match="has no safetensors files"):
        load_safetensors(applied, tmp_path)
    index = {"weight_map": {"norm.weight": "a.safetensors", "head.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointUnreadable, match=r"names a\.safetensors, b\.safetensors, which is not there"):
        load_safetensors(applied, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointUnreadable, match="has no weight_map"):
        load_safetensors(applied, tmp_path)
    assert untouched(applied)


def test_a_file_that_was_cut_short(world: int, tmp_path: Path) -> None:
    applied = planned()
    file = files(tmp_path) / "model.safetensors"
    whole = file.read_bytes()
    for kept in (whole[:-4], whole[:20], b"", b"no safetensors at all"):
        file.write_bytes(kept)
        with pytest.raises(CheckpointUnreadable, match=r"model\.safetensors: .* It was cut short"):
            load_safetensors(applied, tmp_path)
    assert untouched(applied)


def test_a_checkpoint_of_tied_parameters_fills_untied_ones(world: int, tmp_path: Path) -> None:
    """Under `rename` two parameters have one name in the checkpoint."""
    right = build(tied=True)
    state = {name: tensor for name, tensor in right.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    applied = planned()
    renamed = {"head.weight": "embedding.weight"}
    loaded = load_safetensors(applied, tmp_path, rename=lambda name: renamed.get(name, name))
    assert loaded.num_tensors == len(state) + 1
    assert torch.equal(applied.model.embedding.weight.to_local(), right.head.weight[:4])
    assert torch.equal(applied.model.head.weight.to_local(), right.head.weight[:4])


def test_buffers_that_no_checkpoint_has(world: int, tmp_path: Path) -> None:
    """Made on the meta device they have no values; they are not left as garbage."""
    with torch.device("meta"):
        model = build()
    model.layers[1].plain = torch.ones(3, device="meta")
    applied = planned(model)
    with pytest.raises(BuffersLost, match=r"layers\.0\.frequencies, layers\.1\.plain \(2\)"):
        load_safetensors(applied, files(tmp_path))
    assert untouched(applied)

    def again() -> nn.Module:
        fresh = build()
        fresh.layers[1].plain = torch.ones(3)
        return fresh

    load_safetensors(applied, files(tmp_path), build=again)
    assert torch.equal(model.layers[0].frequencies, torch.linspace(0, 1, 5))
    assert torch.equal(model.layers[1].plain, torch.ones(3))
    assert "frequencies" not in model.layers[0].state_dict()


def test_parameters_that_nothing_initialises(world: int) -> None:
    with on_meta():
        model = build()
        model.layers[0].factor = nn.Parameter(torch.ones(8))
    applied = planned(model)
    with pytest.raises(NoInitialiser, match=r"Block \(layers\.0\): no reset_parameters"):
        initialise(applied, seed=0)
    assert untouched(applied)


def test_values_that_an_initialiser_leaves_out(world: int) -> None:
    """They would be whatever the memory held."""
    with on_meta():
        model = build()
        model.layers[0].feed_forward.up.extra = nn.Parameter(torch.ones(8))
    applied = planned(model)
    with pytest.raises(
        NoInitialiser, match=r"'layers\.0\.feed_forward\.up\.extra' \(Linear\) was not given all of its values"
    ):
        initialise(applied, seed=0)


def test_buffers_that_only_a_checkpoint_would_fill(world: int) -> None:
    with torch.device("meta"):
        model = build()
    model.layers[0].frequencies = torch.linspace(0, 1, 5)
    model.register_buffer("scale", torch.arange(3.0, device="meta"))
    applied = planned(model)
    with pytest.raises(BuffersLost, match=r"scale \(1\)"):
        initialise(applied, seed=0, init=lambda module: getattr(module, "reset_parameters", lambda: None)())
    assert untouched(applied)


def test_on_meta_inside_on_meta() -> None:
    with on_meta():
        with on_meta():
            pass
        assert nn.Linear(2, 2).weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta


def test_generators_are_left_as_they_were(world: int) -> None:
    applied = planned()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    initialise(applied, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_on_meta_makes_parameters_without_memory_and_real_buffers() -> None:
    with on_meta():
        model = build(tied=True)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.layers[0].frequencies, torch.linspace(0, 1, 5))
    assert not nn.Linear(2, 2).weight.is_meta


def test_what_has_memory_already_is_left_alone(world: int) -> None:
    model = build()
    values = model.head.weight.detach()[:4].clone()
    applied = apply_plan(model, plan_for(model), device_type="cpu")
    parameter = model.head.weight
    materialise(applied)
    assert model.head.weight is parameter
    assert torch.equal(parameter.to_local(), values)
