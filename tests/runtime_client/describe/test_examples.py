"""The shipped descriptions: they load, count what is published, and are what `build.py` makes."""

import importlib.util
from pathlib import Path

import pytest

from planner.schema import ModelDescription

FOLDER = Path(__file__).parents[3] / "examples" / "models"
LORA = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
NUM_PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-2": 124_439_808,
    "llama-3-8b-lora": 8_030_261_248 + LORA,
}


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_published_counts(name: str) -> None:
    model = ModelDescription.from_json((FOLDER / f"{name}.json").read_bytes(), source=name)
    assert model.name == name
    assert model.num_parameters == NUM_PARAMETERS[name]


def test_only_the_adapters_are_trained() -> None:
    model = ModelDescription.from_json((FOLDER / "llama-3-8b-lora.json").read_bytes())
    trained = [(name, p) for name, p in model.iter_parameters() if p.requires_grad]
    assert all(".lora_" in name for name, _ in trained)
    assert sum(p.num_elements for _, p in trained) == LORA
    assert not model.kinds["embed_tokens"].output_requires_grad


def test_build_makes_what_is_shipped() -> None:
    spec = importlib.util.spec_from_file_location("build_models", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(module.SHIPPED)
    shipped = ModelDescription.from_json((FOLDER / "gpt-2.json").read_bytes())
    built = module.build("gpt-2")
    assert built.fingerprint == shipped.fingerprint
    assert (built.kinds, built.calls, built.shared) == (shipped.kinds, shipped.calls, shipped.shared)
