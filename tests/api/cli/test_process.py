"""The installed program in processes of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = shutil.which("shardwright", path=str(Path(sys.executable).parent))
HEAVY = ("torch", "ortools", "numpy", "fastapi", "sqlalchemy", "planner.schema", "rich.live", "httpx2")


def run(*words, cwd, **environment):
    assert PROGRAM is not None, "install the project first: pip install -e ."
    return subprocess.run(
        [PROGRAM, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_loads_nothing_heavy(tmp_path):
    code = "import sys; from api.cli.__main__ import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(result.stderr.split())
    assert "api.cli.plan" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("folder", ["api", "planner", "solver"])
def test_a_folder_of_the_same_name_does_not_shadow_the_program(tmp_path, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "__init__.py").write_text("raise SystemExit('shadowed')\n")
    result = run("version", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("shardwright ")


def test_output_survives_a_terminal_without_utf8(tmp_path):
    result = run(
        "catalog", cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii", PYTHONCOERCECLOCALE="0"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


def test_a_closed_pipe_is_no_error(tmp_path):
    assert PROGRAM is not None
    result = subprocess.run(
        ["sh", "-c", f"'{PROGRAM}' schema request | head -c 10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.startswith("{")
    assert "Traceback" not in result.stderr


def test_without_typer_the_remedy_is_named(tmp_path):
    code = "import sys; sys.modules['typer'] = None; from api.cli.__main__ import main; sys.exit(main(['version']))"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "pip install 'shardwright[cli]'" in result.stderr
