"""`describe` in a process of its own, from a folder that holds the user's package and one that looks like ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.documents import load_model

PROGRAM = shutil.which("shardwright", path=str(Path(sys.executable).parent))

BUILD = """
from torch import nn

from runtime_client.describe import TrainingExample, token_inputs


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(hidden)


def build():
    return TrainingExample(model=Tiny(), inputs=token_inputs)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(BUILD)
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").write_text("raise SystemExit('shadowed')\n")
    return tmp_path


def run(folder, *words):
    assert PROGRAM is not None
    return subprocess.run(
        [PROGRAM, "describe", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_builder_in_the_working_directory(folder):
    result = run(folder, "mine:build", "--seq", "32", "--micro-batch", "2", "--name", "tiny", "-o", "model.json")
    assert result.returncode == 0, result.stderr
    model = load_model(str(folder / "model.json"))
    assert model.name == "tiny"
    assert model.num_parameters == 64 * 16 + 3 * (16 * 16 + 16) + 16 * 64 + 64
    assert f"tiny: {model.num_parameters:,} parameters" in " ".join(result.stderr.split())


def test_a_builder_that_is_not_there(folder):
    result = run(folder, "mine:nothing")
    assert result.returncode == 2
    assert result.stderr.startswith("error: 'mine:nothing' cannot be loaded")
