import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from fastapi.testclient import TestClient

from tests.api.http.gated import Gated
from tests.api.http.server import Process, Server, Worker, running_client

structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])


def _started(kind: type[Process]) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def start(database_url: str, **environment: str) -> Process:
        processes.append(kind(database_url, environment))
        return processes[-1]

    yield start
    for process in processes:
        if process.process.returncode is None:
            process.end(signal.SIGKILL)


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    yield from _started(Server)


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    yield from _started(Worker)


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    with running_client(database_url) as client:
        yield client


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def gated(start_server, database_url: str, tmp_path: Path) -> Callable[..., Gated]:
    return lambda **environment: Gated(start_server, database_url, tmp_path / "gate", **environment)
