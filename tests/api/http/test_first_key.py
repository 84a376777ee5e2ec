from fastapi.testclient import TestClient

from api.service.callers import Scope
from api.service.keys import KeyService, NewKey
from profiles_db.engine import Database
from tests.api.http.server import bearer, decoder_request, make_key, running_client
from tests.api.http.test_problems import check_problem


def test_nothing_is_asked_until_the_first_key_is_made(client: TestClient) -> None:
    everyone = {"tenant": "default", "name": "anonymous", "scopes": ["read", "plan", "admin"]}
    assert client.get("/v1/whoami").json() == everyone
    made = make_key(client, "plan")
    assert set(made["token"].split("_")[:2]) == {"swk", made["key_id"]}
    refused = client.get("/v1/whoami")
    check_problem(refused, 401, "unauthenticated")
    assert refused.headers["www-authenticate"] == "Bearer"
    with_key = client.get("/v1/whoami", headers=bearer(made["token"])).json()
    assert with_key == {"tenant": "default", "name": "a key", "scopes": ["read", "plan"]}
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_a_key_has_so_many_unfinished_jobs(sqlite_url: str) -> None:
    with running_client(sqlite_url, max_jobs_per_key=2, max_solves_per_key=1) as client:
        own = bearer(make_key(client, "plan")["token"])
        issued = KeyService(Database(sqlite_url)).create("default", NewKey(name="b", scopes=(Scope.PLAN,)))
        other = bearer(issued.token)
        requests = [decoder_request(20 + number) for number in range(3)]
        for request in requests[:2]:
            answer = client.post("/v1/plans", params={"wait": 0}, json=request, headers=own)
            assert answer.status_code == 202
        refused = client.post("/v1/plans", params={"wait": 0}, json=requests[2], headers=own)
        check_problem(refused, 429, "too_many_jobs")
        assert refused.headers["retry-after"] == "5"
        again = client.post("/v1/plans", params={"wait": 0}, json=requests[1], headers=own)
        assert again.status_code == 202
        assert client.post("/v1/plans", params={"wait": 0}, json=requests[2], headers=other).status_code == 202
