import re
from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient

from api.service.callers import Scope
from api.service.keys import KeyService, NewKey
from profiles_db.engine import Database
from tests.api.http.server import running_client
from tests.api.http.test_oidc import Provider

HTML = {"accept": "text/html"}


def form_token(client: TestClient, path: str = "/login") -> str:
    """The token that forms of this client carry."""
    found = re.search(r'X-CSRF-Token": "([0-9a-f]{64})"', client.get(path).text)
    assert found is not None
    return found[1]


def log_in(client: TestClient, credential: str, **more: str):
    token = form_token(client)
    return client.post(
        "/login", data={"csrf": token, "credential": credential, **more}, headers=HTML, follow_redirects=False
    )


@pytest.fixture
def open_client(sqlite_url: str) -> Iterator[TestClient]:
    with running_client(sqlite_url) as client:
        yield client


@pytest.fixture
def sqlite_url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def make_key(database_url: str, client: TestClient) -> Iterator[Callable[..., str]]:
    """Makes a key of a tenant and returns what its owner is told."""
    database = Database(database_url)
    keys = KeyService(database)

    def make(tenant: str = "team-a", scope: Scope = Scope.ADMIN) -> str:
        return keys.create(tenant, NewKey(name=f"of {tenant}", scopes=(scope,))).token

    yield make
    database.close()


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    with running_client(database_url) as client:
        yield client


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider()
    yield running
    running.server.shutdown()
    running.server.server_close()
