"""Weights of sharded models on gloo ranks: loaded, initialised, saved, equal to the unsharded model to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from tests.real.launch import ROOT, run_ranks
from tests.real.weights import build, large, tied_transformer

pytestmark = [pytest.mark.real, pytest.mark.slow]


def write_files(folder: Path, *, tied: bool) -> None:
    """As Hugging Face writes a large model: two files and an index; of tied names only one."""
    folder.mkdir()
    state = {
        name: tensor for name, tensor in build(tied).state_dict().items() if not (tied and name == "head.weight")
    }
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, own in parts.items():
        save_file({name: state[name] for name in own}, folder / file)
    where = {name: file for file, own in parts.items() for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


KINDS = {2: ("even", "elements"), 4: ("even", "host", "rows", "elements", "bfloat16", "hybrid")}


@pytest.fixture(scope="module", params=sorted(KINDS))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("weights")
    write_files(folder / "files", tied=False)
    write_files(folder / "tied", tied=True)
    tied_transformer().save_pretrained(folder / "transformers", max_shard_size="10KB")
    assert len(list((folder / "transformers").glob("*.safetensors"))) > 2
    (folder / "large").mkdir()
    save_file(large().state_dict(), folder / "large" / "model.safetensors")
    outputs = run_ranks(
        ROOT / "tests/real/weights.py",
        request.param,
        [str(folder), *KINDS[request.param]],
        log_dir=tmp_path_factory.mktemp("logs"),
        timeout_s=300,
        env={"MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed goes back at once, so that growth can be seen
    )
    return [list(map(json.loads, output.stdout.splitlines())) for output in outputs]


def test_every_way_gives_the_weights_of_the_unsharded_model(results: list[list[dict[str, Any]]]) -> None:
    for _, *rank in results:
        assert tuple(found["kind"] for found in rank) == KINDS[len(results)]
        for found in rank:
            for way in ("load", "tied", "broadcast", "scratch", "saved"):
                assert found[way]["different"] == [], f"{found['kind']}, {way}"


def test_each_rank_reads_what_it_holds(results: list[list[dict[str, Any]]]) -> None:
    """The bytes of its shards and of the buffer, no more; tied parameters once, and they stay tied."""
    for _, *rank in results:
        for found in rank:
            assert [found[way]["read"] for way in ("load", "tied")] == [0, 0], found["kind"]
            assert [found[way]["tied"] for way in ("load", "tied")] == [False, True]


def test_conversion_is_stated(results: list[list[dict[str, Any]]]) -> None:
    for found in results[0][1:]:
        expected = {"float32 -> bfloat16": 22} if found["kind"] == "bfloat16" else {}
        assert found["load"]["converted"] == expected


def test_a_model_of_transformers_has_its_ties_and_frequencies(results: list[list[dict[str, Any]]]) -> None:
    for first, *_ in results:
        assert first["transformers"] == {"_GeneratorContextManager": True, "device": True, "scratch": []}


def test_no_rank_needs_memory_for_the_whole_model(results: list[list[dict[str, Any]]]) -> None:
    """As parts of the whole model. Mapped pages of the file count too: a rank has its shards there once more."""
    part = 1 / len(results)
    for rank, (first, *_) in enumerate(results):
        grown = first["memory"]
        assert part < grown["slices"] < 2 * part + 0.2
        assert 1 < grown["every rank"] < 1.2
        assert grown["rank 0"] > 1 if rank == 0 else grown["rank 0"] < part + 1 / 8 + 0.2
