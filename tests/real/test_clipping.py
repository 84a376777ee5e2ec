"""Gradients on several meshes are clipped by their common norm, which torch's own function refuses."""

import json
from pathlib import Path

import pytest

from tests.real.launch import run_ranks

pytestmark = pytest.mark.real


def test_the_norm_over_several_meshes_is_that_of_the_whole_model(tmp_path: Path) -> None:
    ranks = run_ranks(Path(__file__).with_name("clip.py"), 4, log_dir=tmp_path / "logs")
    for rank in ranks:
        for norm_type, found in json.loads(rank.stdout).items():
            assert found["torch"] == "", f"torch clips several meshes at once now (norm {norm_type})"
            assert found["norm"] > 1e-3
            assert found["norm"] == pytest.approx(found["expected"], rel=1e-5)
            assert found["error"] < 1e-8
