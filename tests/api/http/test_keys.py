from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, MODEL
from api.service.callers import Scope, with_implied
from api.service.keys import KeyService, NewKey
from profiles_db import migrations
from profiles_db.engine import Database
from tests.api.http.server import bearer, make_key, running_client
from tests.api.http.test_problems import check_problem


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One server for all, whose first key is an admin's; `keyed.headers` carry it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('keys') / 'test.db'}"
    else:
        url = request.getfixturevalue("create_postgresql")()
    with running_client(url) as client:
        key = client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]}).json()
        client.headers["Authorization"] = f"Bearer {key['token']}"
        yield client


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic c3drOng=",
        "Bearer swk_",
        "Bearer swk__",
        f"Bearer swk_{'0' * 16}_x",
        "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.",
        f"Bearer {'x' * 5000}",
    ],
)
def test_what_is_no_key_is_refused_before_anything_is_read(keyed: TestClient, header: str) -> None:
    answer = keyed.post("/v1/plans", content=b"no JSON", headers={"Authorization": header, "content-type": "a/b"})
    check_problem(answer, 401, "unauthenticated")


def test_a_secret_of_another_key_does_not_open_this_one(keyed: TestClient) -> None:
    one, other = make_key(keyed, "read")["token"], make_key(keyed, "read")["token"]
    mixed = "_".join([*one.split("_", 2)[:2], other.split("_", 2)[2]])
    check_problem(keyed.get("/v1/whoami", headers=bearer(mixed)), 401, "unauthenticated")


def test_scopes(keyed: TestClient) -> None:
    read, plan = bearer(make_key(keyed, "read")["token"]), bearer(make_key(keyed, "plan")["token"])
    assert keyed.get("/v1/plans", headers=read).status_code == 200
    assert keyed.get("/metrics", headers=read).status_code == 200
    problem = check_problem(keyed.post("/v1/models", json=MODEL, headers=read), 403, "forbidden")
    assert "'plan'" in problem["detail"]
    assert keyed.post("/v1/models", json=MODEL, headers=plan).status_code == 201
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", f"/v1/keys/{'0' * 16}")):
        check_problem(keyed.request(method, path, headers=plan), 403, "forbidden")
    check_problem(keyed.get("/metrics", headers={"Authorization": ""}), 401, "unauthenticated")


def test_a_scope_includes_the_lesser_ones() -> None:
    assert with_implied([]) == set()
    assert with_implied([Scope.READ]) == {Scope.READ}
    assert with_implied([Scope.PLAN]) == {Scope.READ, Scope.PLAN}
    assert with_implied([Scope.ADMIN]) == set(Scope)


def test_rotation_keeps_the_old_secret_for_as_long_as_asked(keyed: TestClient) -> None:
    first = make_key(keyed, "read")
    path = f"{first['links']['self']}/rotate"
    second = keyed.post(path, json={"keep_old_s": 3600}).json()
    assert second["key_id"] == first["key_id"]
    assert second["rotated_at"] is not None
    for token in (first["token"], second["token"]):
        assert keyed.get("/v1/whoami", headers=bearer(token)).status_code == 200
    third = keyed.post(path, json={}).json()
    statuses = [keyed.get("/v1/whoami", headers=bearer(key["token"])).status_code for key in (first, second, third)]
    assert statuses == [401, 401, 200]


def test_a_revoked_key_is_refused_at_once_and_stays_listed(keyed: TestClient) -> None:
    made = make_key(keyed, "read")
    assert keyed.get("/v1/whoami", headers=bearer(made["token"])).status_code == 200
    for _ in range(2):
        assert keyed.delete(made["links"]["self"]).status_code == 204
    check_problem(keyed.get("/v1/whoami", headers=bearer(made["token"])), 401, "unauthenticated")
    check_problem(keyed.post(f"{made['links']['self']}/rotate", json={}), 404, "not_found")
    listed = keyed.get("/v1/keys").json()["items"]
    assert (listed[0]["key_id"], listed[-1]["name"]) == (made["key_id"], "operator")
    assert listed[0]["revoked_at"] is not None
    assert listed[0]["last_used_at"] is not None
    assert made["token"].split("_", 2)[2] not in str(listed)


def test_revoking_the_last_key_opens_nothing(database_url: str) -> None:
    database = Database(database_url)
    migrations.upgrade(database)
    assert not KeyService(database).any_exist()
    issued = KeyService(database).create("default", NewKey(name="a", scopes=(Scope.READ,)))
    KeyService(database).revoke(None, issued.row.key_id)
    assert KeyService(database).any_exist()
    database.close()


def test_an_expired_key(keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_key(keyed, "read", expires_in_s=60)
    headers = bearer(made["token"])
    assert keyed.get("/v1/whoami", headers=headers).status_code == 200
    from api.service import keys
    from profiles_db.tables import now_us

    monkeypatch.setattr(keys, "now_us", lambda: now_us() + 61_000_000)
    check_problem(keyed.get("/v1/whoami", headers=headers), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"name": ""}, "name"),
        ({"expires_in_s": 0}, "expires_in_s"),
        ({"tenant": "other"}, "tenant"),
    ],
)
def test_keys_that_cannot_be_made(keyed: TestClient, change: dict, path: str) -> None:
    answer = keyed.post("/v1/keys", json={"name": "a", "scopes": ["read"], **change})
    problem = check_problem(answer, 422, "invalid_document")
    assert path in [item["path"] for item in problem["problems"]]


def test_documents_of_a_stranger_are_not_stored(keyed: TestClient) -> None:
    keyed.post("/v1/clusters", json=CLUSTER, headers={"Authorization": "Bearer swk_x"})
    assert keyed.get("/v1/clusters").json()["items"] == []
