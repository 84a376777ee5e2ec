"""`shardwright serve` as a user starts it: a process of its own, a fresh database, a free port of loopback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.launch import ROOT


@contextmanager
def running_service(database: Path) -> Iterator[str]:
    """The address of a service that ends with the context."""
    command = [sys.executable, "-m", "api.cli", "serve", "--port", "0", "--log-format", "json"]
    process = subprocess.Popen(
        [*command, "--database-url", f"sqlite:///{database}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield _address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("event") == "listening":
            return str(entry["url"])
    raise AssertionError("the service ended:\n" + "".join(said))
