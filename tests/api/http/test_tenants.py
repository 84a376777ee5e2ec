from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, MEASUREMENT, MODEL
from api.service.callers import Scope, check_tenant
from api.service.errors import InvalidTenant
from api.service.keys import KeyService, NewKey
from profiles_db.engine import Database
from tests.api.http.server import REQUEST, bearer, running_client
from tests.api.http.test_problems import check_problem


@dataclass(frozen=True)
class Two:
    client: TestClient
    a: dict[str, str]
    b: dict[str, str]


@pytest.fixture
def two(database_url: str) -> Iterator[Two]:
    with running_client(database_url) as client:
        database = Database(database_url)
        keys = KeyService(database)
        tokens = [keys.create(f"team-{name}", NewKey(name=name, scopes=(Scope.ADMIN,))).token for name in "ab"]
        yield Two(client, bearer(tokens[0]), bearer(tokens[1]))
        database.close()


def test_nothing_of_one_tenant_is_there_for_the_other(two: Two) -> None:
    plan = two.client.post("/v1/plans?wait=300", json=REQUEST, headers=two.a)
    assert plan.status_code == 200
    envelope = plan.json()["envelope"]
    inputs = plan.json()["body"]["inputs"]
    job = envelope["job_id"]
    assert job.startswith("team-a:")
    report = {**MEASUREMENT, "plan_id": envelope["plan_id"]}
    assert two.client.post("/v1/measurements", json=report, headers=two.a).status_code == 201
    check_problem(two.client.post("/v1/measurements", json=report, headers=two.b), 404, "not_found")
    paths = [
        f"/v1/plans/{envelope['plan_id']}",
        f"/v1/plans/{envelope['plan_id']}/measurements",
        f"/v1/models/{inputs['model']}",
        f"/v1/clusters/{inputs['cluster']}",
        f"/v1/jobs/{job}",
        f"/v1/jobs/{job}/events",
    ]
    for path in paths:
        assert two.client.get(path, headers=two.a).status_code == 200
        theirs = check_problem(two.client.get(path, headers=two.b), 404, "not_found")
        nobody = check_problem(
            two.client.get(path.replace(":", ":0", 1)[: len(path)], headers=two.b), 404, "not_found"
        )
        assert theirs["title"] == nobody["title"]
    for path in ("/v1/plans", "/v1/models", "/v1/clusters", "/v1/jobs", "/v1/measurements"):
        assert len(two.client.get(path, headers=two.a).json()["items"]) == 1
        assert two.client.get(path, headers=two.b).json() == {"items": [], "next": None}


def test_what_one_tenant_knows_is_new_to_the_other(two: Two) -> None:
    for headers in (two.a, two.b):
        assert two.client.post("/v1/models", json=MODEL, headers=headers).status_code == 201
        assert two.client.post("/v1/models", json=MODEL, headers=headers).status_code == 200
    plans = [two.client.post("/v1/plans", json=REQUEST, headers=headers).json() for headers in (two.a, two.b)]
    assert plans[0]["body"] == plans[1]["body"]
    assert [plan["envelope"]["job_id"].split(":")[0] for plan in plans] == ["team-a", "team-b"]
    assert "shardwright_planner_starts_total 2.0" in two.client.get("/metrics", headers=two.a).text


def test_references_do_not_reach_over(two: Two) -> None:
    reference = two.client.post("/v1/clusters", json=CLUSTER, headers=two.a).json()["content_hash"]
    answer = two.client.post("/v1/plans", json={**REQUEST, "cluster": reference}, headers=two.b)
    check_problem(answer, 422, "unknown_reference")


def test_keys_of_another_tenant_can_neither_be_seen_nor_ended(two: Two) -> None:
    (own,) = two.client.get("/v1/keys", headers=two.a).json()["items"]
    assert own["tenant"] == "team-a"
    check_problem(two.client.delete(own["links"]["self"], headers=two.b), 404, "not_found")
    check_problem(two.client.post(f"{own['links']['self']}/rotate", json={}, headers=two.b), 404, "not_found")
    made = two.client.post("/v1/keys", json={"name": "c", "scopes": ["read"]}, headers=two.b).json()
    assert made["tenant"] == "team-b"


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a b", "a:b", "a/b", "\u00e9", "a\n"])
def test_names_that_no_tenant_can_have(name: str) -> None:
    with pytest.raises(InvalidTenant, match="lower-case"):
        check_tenant(name)
