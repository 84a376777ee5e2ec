import threading

from fastapi.testclient import TestClient

from tests.api.http.server import FAST, REQUEST, Server, decoder_request, is_gone, wait_until
from tests.api.http.test_jobs import events_of
from tests.api.http.test_problems import check_problem

LONG = decoder_request(24)
ONE_SLOT = {"SHARDWRIGHT_MAX_CONCURRENT_SOLVES": "1"}


def submit(server: Server, request: dict, **parameters: object) -> str:
    answer = server.http.post("/v1/plans", params={"wait": 0, **parameters}, json=request)
    assert answer.status_code == 202
    return answer.headers["Location"]


def test_a_cancelled_job_frees_its_slot_and_the_request_can_be_posted_again(
    start_server, database_url: str
) -> None:
    server = start_server(database_url, **ONE_SLOT)
    link = submit(server, LONG)
    wait_until(server.child_pids)
    (planner,) = server.child_pids()
    waiting = []
    thread = threading.Thread(
        target=lambda: waiting.append(server.http.post("/v1/plans", params={"wait": 300}, json=LONG))
    )
    thread.start()
    wait_until(lambda: 'shardwright_plan_requests_total{met="job"} 1.0' in server.http.get("/metrics").text)
    answer = server.http.post(f"{link}/cancel")
    thread.join()
    wait_until(lambda: is_gone(planner))
    assert answer.status_code == 200
    job = answer.json()
    assert (job["state"], job["plan_id"], job["problem"]["code"]) == ("cancelled", None, "job_cancelled")
    assert job["finished_at"] is not None
    check_problem(waiting[0], 409, "job_cancelled")
    assert server.http.post("/v1/plans", params={"wait": 300}, json=REQUEST).status_code == 200
    assert server.http.get(link).json() == job
    assert events_of(server.http.get(f"{link}/events").text)[-1][:2] == ("done", job)
    assert submit(server, LONG).endswith(":2")


def test_a_queued_job_that_is_cancelled_never_starts(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, **ONE_SLOT)
    first = submit(server, LONG)
    wait_until(server.child_pids)
    second = submit(server, REQUEST)
    assert server.http.delete(second).json()["state"] == "cancelled"
    assert server.http.delete(first).json()["state"] == "cancelled"
    third = server.http.post("/v1/plans", params={"wait": 300}, json=decoder_request(3, **FAST))
    assert third.status_code == 200
    assert "shardwright_planner_starts_total 2.0" in server.http.get("/metrics").text


def test_a_job_that_runs_elsewhere_is_stopped_there(start_server, postgresql_url: str) -> None:
    servers = [start_server(postgresql_url, **ONE_SLOT) for _ in range(2)]
    link = submit(servers[0], LONG)
    wait_until(lambda: servers[0].child_pids() or servers[1].child_pids())
    runs, other = servers if servers[0].child_pids() else reversed(servers)
    (planner,) = runs.child_pids()
    assert other.http.delete(link).json()["state"] == "cancelled"
    wait_until(lambda: is_gone(planner))
    assert runs.http.get(link).json()["state"] == "cancelled"


def test_an_ended_job_stays_as_it_is(client: TestClient) -> None:
    plan = client.post("/v1/plans?wait=300", json=REQUEST).json()
    link = f"/v1/jobs/{plan['envelope']['job_id']}"
    before = client.get(link).json()
    assert before["state"] == "succeeded"
    assert client.post(f"{link}/cancel").json() == client.delete(link).json() == before
    check_problem(client.delete("/v1/jobs/nothing"), 404, "not_found")
