import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi.testclient import TestClient

from api.http.examples import CLUSTER
from api.service.callers import ANONYMOUS
from api.service.errors import ChangedMeanwhile
from planner.schema import Plan
from tests.api.http.server import FAST, REQUEST, bearer, decoder_request, make_key
from tests.api.http.test_problems import check_problem


def _plan(client: TestClient, **changes: Any) -> str:
    answer = client.post("/v1/plans", json={**REQUEST, **changes})
    assert answer.status_code == 200
    return answer.json()["envelope"]["plan_id"]


def _slower_cluster() -> dict[str, Any]:
    cluster = copy.deepcopy(CLUSTER)
    cluster["inter_node"]["bytes_per_s"] //= 2
    return cluster


def _add(client: TestClient, plan_id: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/lineages", json={"name": "job", "plan": plan_id, **more})
    assert answer.status_code in (200, 201)
    assert answer.headers["ETag"] == f'"{answer.json()["version"]}"'
    return answer.json()


def test_revisions_say_what_changed_and_none_is_overwritten(client: TestClient) -> None:
    first, second = _plan(client), _plan(client, cluster=_slower_cluster())
    tighter = _plan(client, cluster=_slower_cluster(), limits={"memory_bytes": 60_000_000_000})
    other_torch = {**REQUEST["workload"], "torch_version": "2.12"}
    older = _plan(client, cluster=_slower_cluster(), workload=other_torch)
    for plan_id in (first, second, tighter, older):
        lineage = _add(client, plan_id, why="for a test")
    assert lineage["num_revisions"] == 4
    rows = client.get(f"/v1/lineages/{lineage['lineage_id']}/revisions").json()["items"]
    assert [row["revision"] for row in rows] == [4, 3, 2, 1]
    assert [row["plan"] for row in rows] == [older, tighter, second, first]
    assert [row["changed"] for row in rows] == [["workload", "knobs"], ["knobs"], ["cluster"], []]
    assert "inter_node.bytes_per_s: 50 GB/s -> 25 GB/s" in rows[2]["why"]
    assert "limits.memory_bytes: default -> 60000000000" in rows[1]["why"] or "limits: default" in rows[1]["why"]
    assert "torch_version: 2.13 -> 2.12" in rows[0]["why"]
    assert rows[3]["why"] == "for a test; the first revision"
    assert lineage["active"]["revision"] == 1
    assert client.get(rows[3]["links"]["self"]).json() == rows[3]
    assert client.get(rows[3]["links"]["plan"]).status_code == 200


def test_the_newest_plan_again_adds_nothing(client: TestClient) -> None:
    plan_id = _plan(client)
    assert _add(client, plan_id) == _add(client, plan_id)
    assert client.post("/v1/lineages", json={"name": "job", "plan": plan_id}).status_code == 200


def test_a_launcher_gets_the_active_plan_with_its_lineage(client: TestClient) -> None:
    plan_id = _plan(client)
    _add(client, plan_id, why="night run")
    answer = client.get("/v1/lineages/job/active")
    plan = Plan.from_json(answer.content)
    assert plan.verify()
    assert (plan.envelope.lineage, plan.envelope.revision) == ("job", 1)
    assert plan.envelope.why == "night run; the first revision"
    assert plan.body == Plan.from_json(client.get(f"/v1/plans/{plan_id}").content).body
    again = client.get("/v1/lineages/job/active", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    model = {"model": plan.body.model_fingerprint}
    assert client.get("/v1/lineages/job/active", params=model).content == answer.content
    other = {"model": f"sha256:{'1' * 64}"}
    check_problem(client.get("/v1/lineages/job/active", params=other), 404, "not_found")


def test_activation_and_rollback_name_the_version_that_was_seen(client: TestClient) -> None:
    first, second = _plan(client), _plan(client, cluster=_slower_cluster())
    _add(client, first)
    seen = _add(client, second)
    path = "/v1/lineages/job/active"
    check_problem(client.put(path, json={"revision": 2}), 428, "version_missing")
    for stale in ('"1"', '"x"', "*", 'W/"2"'):
        check_problem(client.put(path, json={"revision": 2}, headers={"If-Match": stale}), 412, "changed_meanwhile")
    tag = {"If-Match": f'"{seen["version"]}"'}
    moved = client.put(path, json={"revision": 2, "why": "looks good"}, headers=tag)
    assert moved.status_code == 200
    assert moved.json()["active"]["plan"] == second
    check_problem(client.put(path, json={"revision": 1}, headers=tag), 412, "changed_meanwhile")
    back = client.put(path, json={"revision": 1, "why": "slow"}, headers={"If-Match": moved.headers["ETag"]})
    assert client.get(path).json()["envelope"]["plan_id"] == back.json()["active"]["plan"] == first
    history = client.get("/v1/lineages/job/activations").json()["items"]
    moves = [(item["number"], item["previous_revision"], item["revision"], item["why"]) for item in history]
    assert moves == [(3, 2, 1, "slow"), (2, 1, 2, "looks good"), (1, None, 1, "the first plan that fits")]
    headers = {"If-Match": back.headers["ETag"]}
    check_problem(client.put(path, json={"revision": 9}, headers=headers), 404, "not_found")
    check_problem(client.put("/v1/lineages/none/active", json={"revision": 1}, headers=headers), 404, "not_found")


def test_what_does_not_fit_is_never_active(client: TestClient) -> None:
    infeasible = _plan(client, limits={"memory_bytes": 1000})
    lineage = _add(client, infeasible)
    assert lineage["active"] is None
    check_problem(client.get("/v1/lineages/job/active"), 404, "no_active_plan")
    tag = {"If-Match": f'"{lineage["version"]}"'}
    check_problem(client.put("/v1/lineages/job/active", json={"revision": 1}, headers=tag), 409, "not_activatable")
    assert _add(client, _plan(client))["active"]["revision"] == 2


def test_differences_in_words_and_numbers(client: TestClient) -> None:
    _add(client, _plan(client))
    _add(client, _plan(client, cluster=_slower_cluster()))
    found = client.get("/v1/lineages/job/difference", params={"before": 1, "after": 2}).json()
    assert list(found["inputs"]) == ["cluster"]
    by_path = {change["path"]: change for change in found["changes"]}
    assert by_path["predictions.step_time_ns"]["before"].endswith("ms")
    assert "step time" in by_path["predictions.step_time_ns"]["words"]
    missing = client.get("/v1/lineages/job/difference", params={"before": 1, "after": 3})
    check_problem(missing, 404, "not_found")


def test_another_module_or_training_is_another_lineage(client: TestClient) -> None:
    one = _add(client, _plan(client))
    bigger = client.post("/v1/plans", json=decoder_request(3, **FAST)).json()["envelope"]["plan_id"]
    other_module = _add(client, bigger)
    longer = _add(client, _plan(client, workload={**REQUEST["workload"], "sequence": 1024}))
    assert len({one["lineage_id"], other_module["lineage_id"], longer["lineage_id"]}) == 3
    check_problem(client.get("/v1/lineages/job"), 409, "ambiguous_lineage")
    assert client.get(f"/v1/lineages/{one['lineage_id']}").json() == one
    params = {"model": other_module["model_fingerprint"]}
    assert client.get("/v1/lineages/job/active", params=params).json()["envelope"]["plan_id"] == bigger
    pages = [client.get("/v1/lineages", params={"name": "job", "limit": 2}).json()]
    pages.append(client.get("/v1/lineages", params={"name": "job", "limit": 2, "cursor": pages[0]["next"]}).json())
    ids = [item["lineage_id"] for page in pages for item in page["items"]]
    assert ids == [longer["lineage_id"], other_module["lineage_id"], one["lineage_id"]]
    assert pages[1]["next"] is None
    wrong = {"cursor": pages[0]["next"]}
    check_problem(client.get(f"/v1/lineages/{one['lineage_id']}/revisions", params=wrong), 422, "invalid_cursor")


def test_lineages_belong_to_a_tenant_and_activation_needs_an_admin(client: TestClient) -> None:
    plan_id = _plan(client)
    admin = bearer(make_key(client, "admin")["token"])
    planner = bearer(client.post("/v1/keys", json={"name": "p", "scopes": ["plan"]}, headers=admin).json()["token"])
    made = client.post("/v1/lineages", json={"name": "job", "plan": plan_id}, headers=planner)
    assert made.status_code == 201
    headers = {**planner, "If-Match": made.headers["ETag"]}
    check_problem(client.put("/v1/lineages/job/active", json={"revision": 1}, headers=headers), 403, "forbidden")
    unknown = {"name": "job", "plan": f"sha256:{'0' * 64}"}
    check_problem(client.post("/v1/lineages", json=unknown, headers=planner), 422, "unknown_reference")


def test_of_many_who_add_and_activate_at_once_each_is_in_order(client: TestClient) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    plans = [_plan(client, limits={"memory_bytes": 60 * 2**30 + number}) for number in range(4)]
    bodies = [json.dumps({"name": "busy", "plan": plan_id}).encode() for plan_id in plans]

    def add(body: bytes) -> int:
        return services.lineages.add(ANONYMOUS, body)[0].row.newest_revision

    with ThreadPoolExecutor(4) as threads:
        assert max(threads.map(add, bodies)) == 4
    lineage = client.get("/v1/lineages/busy").json()
    rows = client.get("/v1/lineages/busy/revisions").json()["items"]
    assert sorted(row["plan"] for row in rows) == sorted(plans)

    def activate(number: int) -> bool:
        try:
            services.lineages.activate(ANONYMOUS, "busy", lineage["version"], b'{"revision":%d}' % number)
        except ChangedMeanwhile:
            return False
        return True

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(activate, (2, 3, 4))) == 1
    assert len(client.get("/v1/lineages/busy/activations").json()["items"]) == 2


def test_names_are_plain(client: TestClient) -> None:
    plan_id = _plan(client)
    for name in ("", "a b", "../x", "lin:abc", "a" * 101, "-a", "a\n"):
        check_problem(client.post("/v1/lineages", json={"name": name, "plan": plan_id}), 422, "invalid_document")
