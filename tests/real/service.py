"""`shardwright serve` as a user starts it: a process of its own, a fresh database, a free port of loopback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.real.launch import ROOT


@contextmanager
def running_service(database: Path) -> Iterator[str]:
    """The address of a service that ends with the context."""
    process, url = start_service(database)
    try:
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def start_service(database: Path, *, planner: Sequence[str] = ()) -> tuple[subprocess.Popen[str], str]:
    """The process of a service and its address; `planner` is the command of another planner than ours."""
    command = [sys.executable, "-m", "api.cli", "serve", "--port", "0", "--log-format", "json"]
    own = {"SHARDWRIGHT_PLANNER_COMMAND": json.dumps(planner)} if planner else {}
    process = subprocess.Popen(
        [*command, "--database-url", f"sqlite:///{database}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **own},
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, _address(process)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("event") == "listening":
            return str(entry["url"])
    raise AssertionError("the service ended:\n" + "".join(said))
