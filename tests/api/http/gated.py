"""A server whose planners wait at a gate, so that a test decides when a search ends."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.http import scripted_planner
from tests.api.http.server import Server, bearer, decoder_request


def named(name: str) -> dict:
    request = decoder_request(1)
    return {**request, "model": {**request["model"], "name": name}}


def gate(folder: Path) -> dict[str, str]:
    """Environment of a process with one slot whose planners wait at the gate in a folder."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-P", scripted_planner.__file__, str(folder)]
    return {"SHARDWRIGHT_PLANNER_COMMAND": json.dumps(command), "SHARDWRIGHT_MAX_CONCURRENT_SOLVES": "1"}


class Gated:
    """A server, and the gate that the planners of it and of its workers wait at."""

    def __init__(self, start: Callable[..., Server], url: str, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.server = start(url, **gate(folder), **environment)

    def ask(self, name: str, token: str | None = None, **parameters: Any) -> Any:
        headers = {} if token is None else bearer(token)
        return self.server.http.post("/v1/plans", params=parameters, json=named(name), headers=headers)

    def post(self, name: str, priority: str = "launcher", token: str | None = None) -> str:
        answer = self.ask(name, token, wait=0, priority=priority)
        assert answer.status_code == 202
        return answer.headers["Location"]

    def get(self, link: str) -> dict[str, Any]:
        return self.server.http.get(link).json()

    def started(self) -> list[str]:
        path = self.folder / "started"
        return path.read_text().split() if path.exists() else []

    def give_provisional_plans(self) -> None:
        (self.folder / "provisional").touch()

    def open(self) -> None:
        (self.folder / "open").touch()
