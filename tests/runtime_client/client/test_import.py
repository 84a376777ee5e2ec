"""What a launcher imports is light: it needs none of what a planner, a server or a trainer needs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "ortools", "fastapi", "sqlalchemy", "numpy", "typer")


@pytest.mark.parametrize(
    "module", ["runtime_client.client", "runtime_client.async_client", "runtime_client.errors", "planner.schema"]
)
def test_imports_where_nothing_heavy_is_installed(module: str) -> None:
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in HEAVY)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {hidden}; import {module}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
