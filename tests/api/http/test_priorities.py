import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from api.service.callers import Scope
from api.service.keys import KeyService, NewKey
from profiles_db import migrations
from profiles_db.engine import Database
from tests.api.http import scripted_planner
from tests.api.http.server import Server, bearer, decoder_request, wait_until


def named(name: str) -> dict:
    request = decoder_request(1)
    return {**request, "model": {**request["model"], "name": name}}


class Gated:
    """A server with one slot whose planners wait at a gate."""

    def __init__(self, start: Callable[..., Server], url: str, folder: Path, **environment: str) -> None:
        self.folder = folder
        folder.mkdir()
        command = [sys.executable, "-P", scripted_planner.__file__, str(folder)]
        self.server = start(
            url,
            SHARDWRIGHT_PLANNER_COMMAND=json.dumps(command),
            SHARDWRIGHT_MAX_CONCURRENT_SOLVES="1",
            **environment,
        )

    def post(self, name: str, priority: str = "launcher", token: str | None = None) -> str:
        headers = {} if token is None else bearer(token)
        parameters = {"wait": 0, "priority": priority}
        answer = self.server.http.post("/v1/plans", params=parameters, json=named(name), headers=headers)
        assert answer.status_code == 202
        return answer.headers["Location"]

    def started(self) -> list[str]:
        path = self.folder / "started"
        return path.read_text().split() if path.exists() else []

    def open(self) -> None:
        (self.folder / "open").touch()


@pytest.fixture
def gated(start_server, database_url: str, tmp_path: Path) -> Callable[..., Gated]:
    return lambda **environment: Gated(start_server, database_url, tmp_path / "gate", **environment)


def test_launchers_run_before_batches(gated) -> None:
    one = gated()
    one.post("first", "batch")
    wait_until(lambda: one.started() == ["first"])
    one.post("second", "batch")
    link = one.post("third")
    assert one.server.http.get(link).json()["priority"] == "launcher"
    one.open()
    wait_until(lambda: len(one.started()) == 3)
    assert one.started() == ["first", "third", "second"]


@pytest.mark.parametrize("limit", ["1", "8"])
def test_a_launcher_that_asks_for_a_batch_job_makes_it_urgent(gated, limit: str) -> None:
    one = gated(SHARDWRIGHT_MAX_SOLVES_PER_KEY=limit)
    one.post("first")
    wait_until(lambda: one.started() == ["first"])
    for name in ("second", "third"):
        one.post(name, "batch")
    link = one.post("third")
    assert one.server.http.get(link).json()["priority"] == "launcher"
    assert one.post("third", "batch") == link
    assert one.server.http.get(link).json()["priority"] == "launcher"
    one.open()
    wait_until(lambda: len(one.started()) == 3)
    assert one.started() == ["first", "third", "second"]


def test_a_key_with_many_jobs_does_not_keep_others_waiting(gated, database_url: str) -> None:
    database = Database(database_url)
    migrations.upgrade(database)
    keys = KeyService(database)
    many, few = (keys.create("default", NewKey(name=name, scopes=(Scope.PLAN,))).token for name in "ab")
    database.close()
    one = gated(SHARDWRIGHT_MAX_SOLVES_PER_KEY="2")
    one.post("many-1", token=many)
    wait_until(lambda: one.started() == ["many-1"])
    for number in (2, 3, 4):
        one.post(f"many-{number}", token=many)
    for number in (1, 2):
        one.post(f"few-{number}", token=few)
    one.open()
    wait_until(lambda: len(one.started()) == 6)
    order = one.started()
    assert order[:2] == ["many-1", "few-1"]
    assert set(order[2:4]) == {"many-2", "few-2"}
    assert order[4:] == ["many-3", "many-4"]
