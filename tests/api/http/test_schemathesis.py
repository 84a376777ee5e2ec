"""Requests made up from the OpenAPI document: no operation fails, and every error is a problem document."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from api.http.problems import MEDIA_TYPE
from benchmarks.hostile_bodies import PLANNER
from tests.api.http.server import Server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


_UNTOUCHED = ("/v1/keys", "/v1/jobs/{job_id}/events")
"""Keys: the first one made would shut the others out. Events: they stream until a job ends."""


@pytest.fixture
def server(sqlite_url: str) -> Iterator[Server]:
    command = json.dumps([sys.executable, "-I", "-S", "-c", PLANNER])
    server = Server(sqlite_url, {"SHARDWRIGHT_PLANNER_COMMAND": command})
    yield server
    if server.process.returncode is None:
        server.end()


def test_no_operation_fails(server: Server) -> None:
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tested = 0
    for found in document.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith(_UNTOUCHED):
            _check(operation)
            tested += 1
    assert tested > 30
    assert server.http.get("/readyz").status_code == 200
    server.end()
    assert not [entry for entry in server.log if entry["event"] in ("request_crashed", "regeneration_step_failed")]


def _check(operation: Any) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def answers_clearly(case: Any) -> None:
        answer = case.call()
        assert answer.status_code < 500, (operation.label, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == [MEDIA_TYPE]
            assert answer.json()["detail"]

    answers_clearly()
