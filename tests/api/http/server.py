"""Servers under test: real processes, and apps in this process."""

import copy
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from fastapi.testclient import TestClient

from api.http import create_app
from api.http.examples import REQUEST as EXAMPLE
from api.settings import Settings

ROOT = Path(__file__).parents[3]
FAST = {"search": {"gap": 0.5}, "client_features": []}
"""Any plan near the bound will do, of few: searches end early."""
REQUEST = {**EXAMPLE, **FAST}


def decoder_request(num_layers: int = 2, **changes: Any) -> dict[str, Any]:
    """The example request with more layers; 32 take the planner ten seconds, 2 take it one, unless `FAST`."""
    request = copy.deepcopy(EXAMPLE)
    model = request["model"]
    names = [f"layers.{number}" for number in range(num_layers)]
    first, last = model["modules"][0], model["modules"][-1]
    model["modules"] = [first, *({"path": name, "parameters": "layer"} for name in names), last]
    calls = model["calls"]
    model["calls"] = [calls[0], *({"path": name, "kind": "layer"} for name in names), *calls[-2:]]
    return {**request, **changes}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def make_key(client: TestClient, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/keys", json={"name": "a key", "scopes": scopes, **more})
    assert answer.status_code == 201
    return answer.json()


def wait_until(condition) -> None:
    for _ in range(1800):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


class Process:
    """A real process of ours that logs to its standard error."""

    def __init__(self, code: str, ready: str, database_url: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SHARDWRIGHT_DATABASE_URL": database_url,
                "SHARDWRIGHT_LOG_FORMAT": "json",
                "SHARDWRIGHT_HEARTBEAT_S": "0.2",
                "SHARDWRIGHT_HEARTBEAT_TIMEOUT_S": "1",
                "SHARDWRIGHT_IDLE_TRANSACTION_S": "5",
                **environment,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.ready = self._log_until(ready)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def _log_until(self, event: str | None) -> dict[str, Any]:
        while (line := self._lines.get()) is not None:
            entry = json.loads(line)
            self.log.append(entry)
            if entry["event"] == event:
                return entry
        if event is None:
            return {}
        raise AssertionError(f"the process ended: {self.log}")

    def child_pids(self) -> list[int]:
        """Planner processes of this one."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def pause(self) -> None:
        """Stop every thread: the signal reaches one of them, and the others run on until that has acted on it."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self._log_until(None)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.wait()


class Server(Process):
    """A real server process on loopback."""

    def __init__(self, database_url: str, environment: dict[str, str]) -> None:
        super().__init__("from api.http import serve; serve(port=0)", "listening", database_url, environment)
        self.url = self.ready["url"]
        self.http = httpx2.Client(base_url=self.url, timeout=300)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        self.http.close()
        super().end(number)


class Worker(Process):
    """A real worker process."""

    def __init__(self, database_url: str, environment: dict[str, str]) -> None:
        code = "from api.settings import Settings; from api.worker import run; run(Settings())"
        super().__init__(code, "working", database_url, environment)


@contextmanager
def running_client(database_url: str, **settings: Any) -> Iterator[TestClient]:
    app = create_app(Settings(database_url=database_url, **settings))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client
