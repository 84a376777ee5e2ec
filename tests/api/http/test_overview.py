import copy

from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from api.http.examples import CLUSTER
from tests.api.http.server import FAST, REQUEST, decoder_request, wait_until
from tests.api.http.test_problems import check_problem


def _plans(client: TestClient) -> None:
    tiny = copy.deepcopy(REQUEST)
    tiny["cluster"]["name"] = "too small"
    tiny["cluster"]["node_groups"][0]["device_memory_bytes"] = 2**28
    for request in (REQUEST, decoder_request(3, **FAST), decoder_request(4, **FAST), tiny):
        assert client.post("/v1/plans?wait=300", json=request).status_code == 200


def test_plans_can_be_searched_filtered_and_sorted_page_by_page(client: TestClient) -> None:
    _plans(client)
    whole = client.get("/v1/plans").json()["items"]
    assert len(whole) == 4
    for sort, field in (
        ("step_time", "step_time_ns"),
        ("memory", "reserved_bytes"),
        ("gap", "gap"),
        ("ranks", "world_size"),
        ("created", "created_at"),
    ):
        for order in ("asc", "desc"):
            seen, cursor = [], None
            while True:
                given = {"sort": sort, "order": order, "limit": 1, **({"cursor": cursor} if cursor else {})}
                page = client.get("/v1/plans", params=given).json()
                seen += page["items"]
                if (cursor := page["next"]) is None:
                    break
            assert sorted(plan["plan_id"] for plan in seen) == sorted(plan["plan_id"] for plan in whole)
            values = [plan[field] for plan in seen if plan[field] is not None]
            assert values == sorted(values, reverse=order == "desc")
            assert all(plan[field] is None for plan in seen[len(values) :])
    cursor = client.get("/v1/plans?sort=gap&limit=1").json()["next"]
    check_problem(client.get("/v1/plans", params={"sort": "memory", "cursor": cursor}), 422, "invalid_cursor")
    check_problem(client.get("/v1/plans?sort=size"), 422, "invalid_parameter")
    name = whole[0]["name"]
    assert len(client.get("/v1/plans", params={"name": name[1:4].upper()}).json()["items"]) == 4
    assert client.get("/v1/plans", params={"name": "%"}).json()["items"] == []
    assert len(client.get("/v1/plans", params={"cluster_name": "too small"}).json()["items"]) == 1
    assert client.get("/v1/plans", params={"model_name": "too small"}).json()["items"] == []
    assert {plan["cluster_name"] for plan in whole} == {CLUSTER["name"], "too small"}


def test_counts_are_those_of_the_lists(client: TestClient) -> None:
    _plans(client)
    found = client.get("/v1/overview").json()
    assert found["plans"] == {"feasible": 3, "infeasible": 1}
    assert found["jobs"]["succeeded"] == 4
    assert (found["workers"], found["reviews_waiting"], found["regenerations_running"]) == (1, 0, 0)
    assert found["slots"] >= 1


def test_clusters_are_listed_by_name_as_they_are_now(client: TestClient) -> None:
    _plans(client)
    page = client.get("/v1/current-clusters?limit=1").json()
    rest = client.get("/v1/current-clusters", params={"limit": 1, "cursor": page["next"]}).json()
    assert [one["name"] for one in page["items"] + rest["items"]] == ["too small", CLUSTER["name"]]
    assert rest["next"] is None
    now = rest["items"][0]
    assert (now["num_nodes"], now["num_devices"], now["num_plans"], now["revision"]) == (2, 16, 3, 0)
    assert now["device_memory_bytes"] == 16 * 85_899_345_920
    lost = {"changes": [{"change": "nodes_lost", "num_nodes": 1}]}
    started = client.post(f"/v1/clusters/{CLUSTER['name']}/revisions", json=lost).json()
    after = client.get(f"/v1/clusters/{CLUSTER['name']}/current").json()
    assert (after["num_nodes"], after["revision"]) == (1, 2)
    check_problem(client.get("/v1/clusters/no such/current"), 404, "not_found")
    wait_until(lambda: client.get(started["links"]["self"]).json()["state"] == "done")


def test_a_cancelled_job_is_tried_again_and_one_with_a_plan_is_not(client: TestClient) -> None:
    job = client.post("/v1/plans?wait=0", json=decoder_request(48)).json()
    check_problem(client.post(f"/v1/jobs/{job['job_id']}/retry"), 409, "not_retryable")
    client.post(f"/v1/jobs/{job['job_id']}/cancel")
    again = client.post(f"/v1/jobs/{job['job_id']}/retry").json()
    assert again["job_id"] != job["job_id"]
    assert (again["attempt"], again["request_hash"]) == (2, job["request_hash"])
    client.post(f"/v1/jobs/{again['job_id']}/cancel")
    done = client.post("/v1/plans?wait=300", json=REQUEST).json()["envelope"]["job_id"]
    check_problem(client.post(f"/v1/jobs/{done}/retry"), 409, "not_retryable")
    check_problem(client.post("/v1/jobs/nobody/retry"), 404, "not_found")
    shown = client.get(f"/v1/jobs/{done}").json()
    assert (shown["model_name"], shown["cluster_name"]) == (REQUEST["model"]["name"], CLUSTER["name"])


def test_a_page_of_clusters_takes_no_more_queries_than_one_cluster(client: TestClient) -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    def num_queries() -> int:
        statements.clear()
        assert client.get("/v1/current-clusters").status_code == 200
        return len([one for one in statements if "FROM documents" in one or "cluster_revisions" in one])

    assert client.post("/v1/clusters", json=CLUSTER).status_code == 201
    event.listen(Engine, "before_cursor_execute", note)
    try:
        of_one = num_queries()
        for number in range(20):
            client.post("/v1/clusters", json={**CLUSTER, "name": f"cluster {number}"})
        assert len(client.get("/v1/current-clusters").json()["items"]) == 21
        assert num_queries() == of_one > 0
    finally:
        event.remove(Engine, "before_cursor_execute", note)
