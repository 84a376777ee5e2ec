import hmac
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, PROFILE
from api.service.regenerations import driver as driver_module
from api.service.regenerations.driver import RegenerationDriver
from api.service.regenerations.verdicts import Compared
from planner.schema import PlanBody
from tests.api.http.server import FAST, REQUEST, bearer, decoder_request, make_key, running_client
from tests.api.http.test_problems import check_problem

NAME = CLUSTER["name"]
PATH = f"/v1/clusters/{quote(NAME)}/revisions"
SLOWER = {"changes": [{"change": "link_degraded", "link": "inter_node", "share": 0.25}]}
LOST = {"changes": [{"change": "nodes_lost", "num_nodes": 1}], "why": "rack 7 lost power"}


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    with running_client(database_url, regeneration_poll_s=0.02) as client:
        yield client


def _lineage(client: TestClient, name: str, request: dict[str, Any] = REQUEST) -> str:
    plan_id = client.post("/v1/plans", json=request).json()["envelope"]["plan_id"]
    assert client.post("/v1/lineages", json={"name": name, "plan": plan_id}).status_code == 201
    return plan_id


def _revise(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == answer.json()["links"]["self"]
    return answer.json()


def _finished(client: TestClient, regeneration: dict[str, Any]) -> dict[str, Any]:
    while True:
        found = client.get(regeneration["links"]["self"]).json()
        if found["state"] != "running":
            return found
        time.sleep(0.02)


def _items(client: TestClient, regeneration: dict[str, Any], **parameters: Any) -> list[dict[str, Any]]:
    return client.get(regeneration["links"]["items"], params=parameters).json()["items"]


def test_slower_plans_wait_for_a_person(client: TestClient) -> None:
    old = _lineage(client, "job")
    done = _finished(client, _revise(client, **SLOWER, why="half the rails are down"))
    assert (done["state"], done["num_items"], done["items"]["done"]) == ("done", 1, 1)
    assert (done["verdicts"]["worse"], done["reviews"]["waiting"]) == (1, 1)
    (item,) = _items(client, done, review="waiting")
    assert item["change"] > 0
    assert any("step time" in reason for reason in item["reasons"])
    lineage = client.get("/v1/lineages/job").json()
    assert (lineage["num_revisions"], lineage["active"]["plan"]) == (2, old)
    assert lineage["newest"]["changed"] == ["cluster"]
    assert lineage["newest"]["cause"] == "regeneration"
    assert "half the rails are down" in lineage["newest"]["why"]
    accept = f"{done['links']['items']}/{item['number']}/accept"
    assert client.post(accept).json()["review"] == "accepted"
    assert client.post(accept).status_code == 200
    check_problem(client.post(accept.replace("accept", "reject")), 409, "not_activatable")
    assert client.get("/v1/lineages/job/active").json()["envelope"]["plan_id"] == item["new_plan"]
    activation = client.get("/v1/lineages/job/activations").json()["items"][0]
    assert activation["previous_revision"] == 1
    assert done["regeneration_id"] in activation["why"]


def test_the_policy_lets_a_little_slower_and_anything_faster_take_over(client: TestClient) -> None:
    _lineage(client, "job")
    slower = _finished(client, _revise(client, **SLOWER, policy={"activate_within_percent": 1000}))
    assert slower["reviews"]["activated"] == 1
    faster = _finished(client, _revise(client, cluster=CLUSTER))
    assert (faster["verdicts"]["better"], faster["reviews"]["activated"]) == (1, 1)
    assert client.get("/v1/lineages/job").json()["active"]["revision"] == 3
    rows = client.get(PATH).json()["items"]
    assert [row["revision"] for row in rows] == [3, 2, 1]
    assert rows[1]["changes"] == [
        "inter_node.name: rail -> rail at 25%",
        "inter_node.bytes_per_s: 50 GB/s -> 12.5 GB/s",
    ]
    assert rows[0]["cluster"] == rows[2]["cluster"]
    asked = _finished(client, _revise(client, **SLOWER, policy={"activate_within_percent": None}))
    assert asked["reviews"]["waiting"] == 1


def test_lost_nodes_plans_that_no_longer_fit_and_plans_without_lineage(client: TestClient) -> None:
    _lineage(client, "wide", {**REQUEST, "workload": {**REQUEST["workload"], "global_batch": 16}})
    tight = {**decoder_request(3, **FAST), "limits": {"memory_bytes": 900_000_000}}
    _lineage(client, "tight", tight)
    client.post("/v1/plans", json=decoder_request(4, **FAST))
    done = _finished(client, _revise(client, **LOST))
    items = _items(client, done)
    assert len(items) == 3
    assert [item["lineage"] for item in items] == ["wide", "tight", None]
    assert all(item["new_plan"] for item in items)
    infeasible = [item for item in items if item["verdict"] == "infeasible"]
    for item in infeasible:
        assert item["reasons"]
        assert item["review"] == "none"
    assert client.get("/v1/lineages/wide").json()["newest"]["why"].startswith("rack 7 lost power")
    again = client.post(PATH, json={**LOST, "dry_run": True})
    check_problem(again, 422, "invalid_document")


def test_only_lineages_where_that_is_asked(client: TestClient) -> None:
    _lineage(client, "job")
    client.post("/v1/plans", json=decoder_request(3, **FAST))
    assert _revise(client, **SLOWER, scope="lineages")["num_items"] == 1


def test_a_dry_run_changes_nothing(client: TestClient) -> None:
    plan_id = _lineage(client, "job")
    found = client.post(PATH, json={**LOST, "dry_run": True})
    assert found.status_code == 200
    assert found.json()["changes"] == ["node_groups[0].num_nodes: 2 -> 1"]
    assert found.json()["items"] == [{"plan": plan_id, "lineage": "job", "revision": 1}]
    assert client.get(PATH).json()["items"] == []
    assert client.get("/v1/regenerations").json()["items"] == []
    check_problem(client.get(f"/v1/clusters/{found.json()['cluster']}"), 404, "not_found")


def test_what_was_measured_elsewhere_is_left_out(client: TestClient) -> None:
    _lineage(client, "job", {**REQUEST, "profile": PROFILE})
    done = _finished(client, _revise(client, **SLOWER))
    assert _items(client, done)[0]["reasons"][0].startswith("collectives were measured on other links")
    assert client.get("/v1/lineages/job").json()["newest"]["changed"] == ["cluster", "profile"]
    device = {**CLUSTER["node_groups"][0]["device"], "name": "accelerator-141", "memory_bytes": 151_000_000_000}
    done = _finished(client, _revise(client, changes=[{"change": "device", "device": device}]))
    assert _items(client, done)[0]["reasons"][0].startswith("the profile was measured on other devices")


def test_a_lineage_that_moved_on_is_left_to_a_person(client: TestClient) -> None:
    _lineage(client, "job")
    first = _finished(client, _revise(client, **SLOWER))
    (waiting,) = _items(client, first, review="waiting")
    second = _finished(client, _revise(client, **LOST, policy={"activate_within_percent": 1000}))
    assert second["reviews"]["activated"] == 1
    accept = f"{first['links']['items']}/{waiting['number']}/accept"
    check_problem(client.post(accept), 409, "not_activatable")
    assert client.post(accept.replace("accept", "reject")).json()["review"] == "rejected"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_document"),
        ({"cluster": CLUSTER, **LOST}, "invalid_document"),
        ({"cluster": CLUSTER}, "invalid_document"),
        ({"cluster": f"sha256:{'0' * 64}"}, "unknown_reference"),
        ({"changes": [{"change": "nodes_lost", "num_nodes": 3}]}, "invalid_document"),
        ({"changes": [{"change": "nodes_lost", "num_nodes": 2}]}, "invalid_document"),
        ({"changes": [{"change": "memory", "group": 1, "device_memory_bytes": 5}]}, "invalid_document"),
        ({"changes": [{"change": "link_degraded", "link": "rail", "share": 0.5}]}, "invalid_document"),
        ({"changes": [{"change": "fire"}]}, "invalid_document"),
        ({**LOST, "webhook_url": "http://169.254.169.254/"}, "invalid_document"),
    ],
)
def test_changes_that_cannot_be(client: TestClient, body: dict[str, Any], code: str) -> None:
    client.post("/v1/clusters", json=CLUSTER)
    check_problem(client.post(PATH, json=body), 422, code)


@pytest.mark.parametrize("name", ["h100/64", "a/revisions", "50%"])
def test_every_name_of_a_cluster_can_be_addressed(client: TestClient, name: str) -> None:
    client.post("/v1/clusters", json={**CLUSTER, "name": name})
    quoted = f"/v1/clusters/{quote(name, safe='')}/revisions"
    answer = client.post(quoted, json=LOST)
    assert answer.status_code == 202, answer.text
    assert client.get(f"/v1/clusters/{quote(name)}/revisions").json()["items"][0]["revision"] == 2
    assert answer.json()["links"]["cluster_revisions"] == quoted
    (found,) = client.get("/v1/regenerations", params={"cluster": name}).json()["items"]
    assert found["cluster"] == name


def test_names_that_no_address_can_hold_are_refused(client: TestClient) -> None:
    unnamed = {**CLUSTER, "name": "a\nb"}
    for kind, body in (("clusters", unnamed), ("plans", {**REQUEST, "cluster": unnamed})):
        problem = check_problem(client.post(f"/v1/{kind}", json=body), 422, "invalid_document")
        assert [one["path"].removeprefix("cluster.") for one in problem["problems"]] == ["name"]


def test_bases_names_and_scopes(client: TestClient) -> None:
    check_problem(client.post(PATH, json=LOST), 404, "not_found")
    client.post("/v1/clusters", json=CLUSTER)
    stale = {**LOST, "base": f"sha256:{'0' * 64}"}
    check_problem(client.post(PATH, json=stale), 412, "changed_meanwhile")
    nothing = f"/v1/regenerations/reg_{'0' * 24}"
    check_problem(client.get(nothing), 404, "not_found")
    check_problem(client.get(f"{nothing}/items"), 404, "not_found")
    check_problem(client.post(f"{nothing}/cancel"), 404, "not_found")
    check_problem(client.post(f"{nothing}/items/1/accept"), 404, "not_found")
    admin = bearer(make_key(client, "admin")["token"])
    planner = bearer(client.post("/v1/keys", json={"name": "p", "scopes": ["plan"]}, headers=admin).json()["token"])
    check_problem(client.post(PATH, json=LOST, headers=planner), 403, "forbidden")


def test_nothing_to_make_again_is_done_at_once(client: TestClient) -> None:
    client.post("/v1/clusters", json=CLUSTER)
    assert _finished(client, _revise(client, **LOST))["num_items"] == 0


def test_a_cancelled_one_ends_and_stays_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    _lineage(client, "job")
    monkeypatch.setattr(driver_module, "WINDOW", 0)
    running = _revise(client, **SLOWER)
    cancelled = client.post(f"{running['links']['self']}/cancel").json()
    assert (cancelled["state"], cancelled["items"]["cancelled"]) == ("cancelled", 1)
    monkeypatch.undo()
    assert client.get(running["links"]["self"]).json() == cancelled
    assert client.get("/v1/lineages/job").json()["num_revisions"] == 1


def test_a_defect_that_one_plan_meets_ends_this_one_alone(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lineage(client, "broken")
    _lineage(client, "whole", {**REQUEST, "limits": {"memory_bytes": 60 * 2**30}})
    compare = driver_module.compare
    broken = client.get("/v1/lineages/broken").json()["active"]["plan"]

    def failing(old: PlanBody, new: PlanBody) -> Compared:
        if old.content_hash() == broken:
            raise RuntimeError("a defect")
        return compare(old, new)

    monkeypatch.setattr(driver_module, "compare", failing)
    done = _finished(client, _revise(client, **SLOWER))
    assert (done["verdicts"]["failed"], done["items"]["done"]) == (1, 2)
    assert client.get("/v1/lineages/broken").json()["num_revisions"] == 1
    assert client.get("/v1/lineages/whole").json()["num_revisions"] == 2


class _Died(BaseException):
    pass


def test_every_step_may_be_the_last_one_of_a_process(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after each of the writes in turn; others go on, and every plan is made again once."""
    services = client.app.state.services  # type: ignore[attr-defined]
    services._regenerating.stop()
    for name in ("a", "b", "c"):
        _lineage(client, name)
    regeneration = _revise(client, **SLOWER, policy={"activate_within_percent": 1000})
    database = services.database
    write = database.write
    left = 0

    def dying_write() -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Died
        return write()

    lives = 0
    while client.get(regeneration["links"]["self"]).json()["state"] == "running":
        lives += 1
        one = RegenerationDriver(database, services.plans.submit_request, None, poll_s=0.01, lease_s=-1.0)
        left = 1 + lives % 5
        monkeypatch.setattr(database, "write", dying_write)
        try:
            while one.advance():
                pass
        except _Died:
            pass
        monkeypatch.setattr(database, "write", write)
        time.sleep(0.02)
    done = client.get(regeneration["links"]["self"]).json()
    assert (done["items"]["done"], done["reviews"]["activated"]) == (3, 3)
    assert lives > 3
    for name in ("a", "b", "c"):
        assert client.get(f"/v1/lineages/{name}").json()["num_revisions"] == 2
        assert len(client.get(f"/v1/lineages/{name}/activations").json()["items"]) == 2


class _Receiver:
    """An address that refuses the first call."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.calls.append((dict(self.headers.items()), body))
                self.send_response(204 if len(receiver.calls) > 1 else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_the_webhook_is_told_until_it_listens(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("api.service.regenerations.webhook._FIRST_PAUSE_S", 0.02)
    receiver = _Receiver()
    hook = {"webhook_url": f"http://127.0.0.1:{receiver.server.server_port}/x", "webhook_secret": "s3cret"}
    with running_client(database_url, regeneration_poll_s=0.02, **hook) as client:
        _lineage(client, "job")
        regeneration = _revise(client, **SLOWER)
        while client.get(regeneration["links"]["self"]).json()["webhook"] != "delivered":
            time.sleep(0.02)
        headers, body = receiver.calls[-1]
        at, _, digest = headers["Shardwright-Signature"].removeprefix("t=").partition(",v1=")
        expected = hmac.new(b"s3cret", f"{at}.".encode() + body, "sha256").hexdigest()
        assert hmac.compare_digest(digest, expected)
        assert abs(time.time() - int(at)) < 60
        event = json.loads(body)
        assert event["event"] == "regeneration.done"
        assert event["regeneration_id"] == headers["Shardwright-Delivery"] == regeneration["regeneration_id"]
        assert event["verdicts"] == {"worse": 1}
        assert len(receiver.calls) == 2
    receiver.end()
