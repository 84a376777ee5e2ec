import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from fastapi.testclient import TestClient

from tests.api.http.gated import Gated
from tests.api.http.server import Server, running_client

structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(database_url: str, **environment: str) -> Server:
        servers.append(Server(database_url, environment))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.returncode is None:
            server.end(signal.SIGKILL)


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
