"""Jobs report, and plans are held to account."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from api.http.examples import MEASUREMENT, PROFILE
from api.service.measurements import MeasurementService
from profiles_db import retention
from profiles_db.engine import Database
from profiles_db.measurements import Bounds
from profiles_db.tables import now_us
from tests.api.http.server import REQUEST, bearer, make_key, running_client
from tests.api.http.test_problems import check_problem


@pytest.fixture
def plan(client: TestClient) -> dict[str, Any]:
    answer = client.post("/v1/plans?wait=300", json=REQUEST)
    assert answer.status_code == 200
    return answer.json()


def report(
    plan: dict[str, Any], number: int = 0, *, step: float = 1.0, peak: float | None = 1.0, **more: Any
) -> dict:
    """The report of a hundred steps that took `step` of the predicted time and `peak` of the predicted memory."""
    predicted = plan["body"]["predictions"]
    return {
        **MEASUREMENT,
        "plan_id": plan["envelope"]["plan_id"],
        "num_ranks": plan["body"]["world_size"],
        "first_step": 100 * number,
        "last_step": 100 * number + 99,
        "step_time_ns": round(step * predicted["step_time_ns"]),
        "step_time_p99_ns": None,
        "peak_bytes": None if peak is None else round(peak * predicted["peak"]["allocated_bytes"]),
        "reserved_bytes": None,
        **more,
    }


def compared(client: TestClient, plan: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(f"/v1/plans/{plan['envelope']['plan_id']}/measurements")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_same_range_of_a_run_is_one_report(client: TestClient, plan: dict[str, Any]) -> None:
    first = client.post("/v1/measurements", json=report(plan))
    assert first.status_code == 201
    again = client.post("/v1/measurements", json=report(plan, step=2.0))
    assert (again.status_code, again.json()) == (200, first.json())
    for other in ({"run": "another"}, {"last_step": 98}, {"first_step": 1}):
        assert client.post("/v1/measurements", json=report(plan, **other)).status_code == 201
    found = compared(client, plan)
    assert (found["num_reports"], found["last"]["first_step"], found["step_ratio"]) == (4, 1, None)
    assert found["words"] == "4 of the 5 reports that a comparison takes."


def test_drift_is_the_median_of_the_last_five(client: TestClient, plan: dict[str, Any]) -> None:
    found = compared(client, plan)
    predicted = plan["body"]["predictions"]
    assert found["predicted_step_time_ns"] == predicted["step_time_ns"]
    assert found["predicted_peak_bytes"] == predicted["peak"]["allocated_bytes"]
    assert (found["num_reports"], found["last"], found["drift"]) == (0, None, [])

    def add(first: int, *steps: float, peak: float | None = 1.0) -> dict[str, Any]:
        for number, step in enumerate(steps, start=first):
            answer = client.post("/v1/measurements", json=report(plan, number, step=step, peak=peak))
            assert answer.status_code == 201, answer.text
        return compared(client, plan)

    assert add(0, 1.0, 1.0, 1.09, 3.0, 9.0)["drift"] == []
    found = add(5, 1.2, 1.2, peak=1.06)
    assert found["step_ratio"] == pytest.approx(1.2, rel=1e-6)
    assert found["peak_ratio"] == 1.0
    assert found["drift"] == ["slower"]
    assert found["words"] == (
        "Steps take 20.0 % longer than predicted (median of the last 5 reports). "
        "The predictions rest on data sheets: measure again, and plan anew."
    )
    counts = client.get("/v1/overview").json()
    assert (counts["plans_measured"], counts["plans_drifting"]) == (1, 1)
    assert "shardwright_drifting_plans 1.0" in client.get("/metrics").text
    assert add(7, 1.2, peak=1.06)["drift"] == ["slower", "more_memory"]
    assert add(8, 0.8, 0.8, 0.8, 0.8, 0.8, peak=None)["drift"] == ["faster"]
    found = add(13, 1.05, 1.05, 1.05, 0.8, 0.8, peak=0.5)
    assert (found["drift"], found["peak_ratio"] < 0.51) == ([], True)
    assert "as predicted" in found["words"]
    assert "shardwright_drifting_plans 0.0" in client.get("/metrics").text


def test_reports_at_once_are_all_kept_and_compared(client: TestClient, plan: dict[str, Any]) -> None:
    def send(number: int) -> int:
        return client.post("/v1/measurements", json=report(plan, number, step=1 + number / 10)).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(16))) == {201}
    newest = client.get("/v1/measurements?limit=5").json()["items"]
    middle = sorted(one["step_time_ns"] for one in newest)[2]
    found = compared(client, plan)
    assert found["num_reports"] == 16
    assert found["step_ratio"] == middle / found["predicted_step_time_ns"]


def test_the_profile_that_is_out_of_date_is_named(client: TestClient) -> None:
    plan = client.post("/v1/plans?wait=300", json={**REQUEST, "profile": PROFILE}).json()
    for number in range(5):
        assert client.post("/v1/measurements", json=report(plan, number, step=2.0)).status_code == 201
    assert f"rest on profile '{PROFILE['name']}', which is out of date" in compared(client, plan)["words"]


def test_pages_are_newest_first(client: TestClient, plan: dict[str, Any]) -> None:
    for number in range(5):
        client.post("/v1/measurements", json=report(plan, number))
    seen, parameters = [], {"plan": plan["envelope"]["plan_id"], "limit": 2}
    while True:
        page = client.get("/v1/measurements", params=parameters).json()
        seen += [item["first_step"] for item in page["items"]]
        if page["next"] is None:
            break
        parameters["cursor"] = page["next"]
    assert seen == [400, 300, 200, 100, 0]
    other = {"plan": f"sha256:{'0' * 64}"}
    assert client.get("/v1/measurements", params=other).json() == {"items": [], "next": None}
    assert len(client.get("/v1/measurements").json()["items"]) == 5


@pytest.mark.parametrize(
    ("changes", "path", "told"),
    [
        ({"first_step": 200}, "", "comes before first_step 200"),
        ({"step_time_ns": 0}, "step_time_ns", "greater than or equal to 1"),
        ({"step_time_p99_ns": 5}, "", "below the median"),
        ({"peak_bytes": 2**44 + 1}, "peak_bytes", "less than or equal to 17592186044416"),
        ({"peak_bytes": 2**30, "reserved_bytes": 2**20}, "", "reserved_bytes is below peak_bytes"),
        ({"measured_at": "yesterday"}, "measured_at", "no ISO 8601 time"),
        ({"measured_at": "2026-03-02T10:00:00"}, "measured_at", "no offset"),
        ({"measured_at": "1970-01-01T00:00:09+00:00"}, "measured_at", "in the year 1970"),
        ({"run": "a b"}, "run", "pattern"),
        ({"hostname": "node-7"}, "hostname", "not permitted"),
    ],
)
def test_bad_values_are_refused_where_they_are(
    client: TestClient, plan: dict[str, Any], changes: dict[str, Any], path: str, told: str
) -> None:
    problem = check_problem(client.post("/v1/measurements", json=report(plan, **changes)), 422, "invalid_document")
    assert (problem["problems"][0]["path"], told in problem["problems"][0]["message"]) == (path, True), problem


def test_only_what_a_plan_predicts_can_be_compared(client: TestClient, plan: dict[str, Any]) -> None:
    unknown = f"sha256:{'0' * 64}"
    check_problem(client.post("/v1/measurements", json=report(plan, plan_id=unknown)), 404, "not_found")
    check_problem(client.get(f"/v1/plans/{unknown}/measurements"), 404, "not_found")
    check_problem(client.post("/v1/measurements", json=report(plan, num_ranks=8)), 422, "inconsistent_request")
    infeasible = client.post("/v1/plans?wait=300", json={**REQUEST, "limits": {"memory_bytes": 1000}}).json()
    plan_id = infeasible["envelope"]["plan_id"]
    check_problem(client.post("/v1/measurements", json=report(plan, plan_id=plan_id)), 409, "no_decisions")
    check_problem(client.get(f"/v1/plans/{plan_id}/measurements"), 409, "no_decisions")


def test_reports_need_the_scope_plan_and_stay_in_their_tenant(client: TestClient, plan: dict[str, Any]) -> None:
    assert client.post("/v1/measurements", json=report(plan)).status_code == 201
    admin = bearer(make_key(client, "admin")["token"])
    reader = bearer(client.post("/v1/keys", json={"name": "r", "scopes": ["read"]}, headers=admin).json()["token"])
    check_problem(client.post("/v1/measurements", json=report(plan, 1), headers=reader), 403, "forbidden")
    assert len(client.get("/v1/measurements", headers=reader).json()["items"]) == 1


def test_old_reports_go_and_a_plan_that_is_measured_stays(database_url: str) -> None:
    with running_client(database_url) as client:
        plan = client.post("/v1/plans?wait=300", json=REQUEST).json()
        client.post("/v1/measurements", json=report(plan))
        middle = now_us()
        client.post("/v1/measurements", json=report(plan, 1))
        database = Database(database_url)

        def prune(before_us: int) -> tuple[int, int]:
            with database.write() as session:
                done = retention.prune(session, keep=1, before_us=before_us)
            return done.measurements, done.plans

        assert prune(middle) == (1, 0)
        assert compared(client, plan)["num_reports"] == 1
        assert prune(now_us()) == (1, 1)
        assert client.get("/v1/measurements").json()["items"] == []
        database.close()


def test_reports_that_are_gone_raise_no_alarm(database_url: str) -> None:
    with running_client(database_url) as client:
        plan = client.post("/v1/plans?wait=300", json=REQUEST).json()
        for number in range(5):
            client.post("/v1/measurements", json=report(plan, number, step=2.0, peak=2.0))
        middle = now_us()
        client.post("/v1/measurements", json=report(plan, 5))
        assert compared(client, plan)["drift"] == ["slower", "more_memory"]
        database = Database(database_url)
        with database.write() as session:
            assert retention.prune(session, keep=1, before_us=middle).measurements == 5
        database.close()
        client.post("/v1/measurements", json=report(plan, 6))
        found = compared(client, plan)
        assert (found["step_ratio"], found["peak_ratio"], found["drift"]) == (None, None, [])
        assert found["words"] == "2 of the 5 reports that a comparison takes."
        assert client.get("/v1/overview").json()["plans_drifting"] == 0


def test_plans_that_drift_are_listed_by_as_many_queries_as_one(database_url: str) -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    database = Database(database_url)
    with running_client(database_url) as client:
        service = MeasurementService(database, client.app.state.services.simulations, Bounds(step=0.1, peak=0.05))

        def num_queries(num_plans: int) -> int:
            statements.clear()
            found = service.drifting("default", limit=8)
            assert len(found) == num_plans
            assert all("rest on profile" in one.words for one in found)
            return len(statements)

        event.listen(database.engine, "before_cursor_execute", note)
        nums = []
        for number in range(1, 3):
            request = {**REQUEST, "profile": PROFILE, "limits": {"memory_bytes": 2**36 - number}}
            plan = client.post("/v1/plans?wait=300", json=request).json()
            for first in range(5):
                client.post("/v1/measurements", json=report(plan, first, step=2.0))
            nums.append(num_queries(number))
        assert nums[0] == nums[1]
    database.close()
