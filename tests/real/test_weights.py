"""Weights of sharded models on gloo ranks: loaded, initialised, saved, equal to the unsharded model to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from tests.real.launch import ROOT, run_ranks
from tests.real.weights import build

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


@pytest.fixture(scope="module", params=[2, 4])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("weights")
    write_files(folder / "files", tied=False)
    write_files(folder / "tied", tied=True)
    outputs = run_ranks(
        ROOT / "tests/real/weights.py",
        request.param,
        [str(folder)],
        log_dir=tmp_path_factory.mktemp("logs"),
        timeout_s=180,
    )
    return [list(map(json.loads, output.stdout.splitlines())) for output in outputs]


def test_every_way_gives_the_weights_of_the_unsharded_model(results: list[list[dict[str, Any]]]) -> None:
    for rank in results:
        assert len(rank) == (6 if len(results) == 4 else 5)
        for found in rank:
            for way in ("load", "tied", "broadcast", "scratch", "saved"):
                assert found[way]["different"] == [], f"{found['kind']}, {way}"


def test_each_rank_reads_what_it_holds(results: list[list[dict[str, Any]]]) -> None:
    """The bytes of its shards and of the buffer, no more; tied parameters once, and they stay tied."""
    for rank in results:
        for found in rank:
            assert [found[way]["read"] for way in ("load", "tied")] == [0, 0], found["kind"]
            assert [found[way]["tied"] for way in ("load", "tied")] == [False, True]


def test_conversion_is_stated(results: list[list[dict[str, Any]]]) -> None:
    for found in results[0]:
        expected = {"float32 -> bfloat16": 22} if found["kind"] == "bfloat16" else {}
        assert found["load"]["converted"] == expected
