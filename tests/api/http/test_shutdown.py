import threading

from fastapi.testclient import TestClient

from tests.api.http.server import REQUEST, is_gone, wait_until
from tests.api.http.test_jobs import events_of


def test_a_server_that_ends_lets_go_of_those_who_wait(gated) -> None:
    one = gated()
    link = one.post("model")
    wait_until(lambda: one.started() == ["model"])
    (planner,) = one.server.child_pids()
    answers: dict[str, object] = {}

    def wait() -> None:
        answers["post"] = one.ask("model", wait=300)

    def follow() -> None:
        answers["stream"] = one.server.http.get(f"{link}/events").text

    threads = [threading.Thread(target=work) for work in (wait, follow)]
    for thread in threads:
        thread.start()
    wait_until(lambda: 'shardwright_plan_requests_total{met="job"} 1.0' in one.server.http.get("/metrics").text)
    one.server.process.terminate()
    for thread in threads:
        thread.join()
    assert answers["post"].status_code == 202
    assert answers["post"].json()["state"] == "running"
    assert [event for event, _, _ in events_of(answers["stream"])] in (["progress"], [])
    one.server.end()
    assert is_gone(planner)


def test_readiness_knows_workers_and_what_waits(client: TestClient) -> None:
    ready = client.get("/readyz").json()
    assert (ready["status"], ready["workers"], ready["queued"]) == ("ok", 1, 0)
    services = client.app.state.services
    services.runner.is_running = False
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_running")


def test_metrics_tell_of_queue_workers_and_plans(client: TestClient) -> None:
    for _ in range(2):
        assert client.post("/v1/plans", json=REQUEST).status_code == 200
    lines = set(client.get("/metrics").text.splitlines())
    assert {
        'shardwright_queue_depth{priority="launcher"} 0.0',
        "shardwright_queue_oldest_seconds 0.0",
        "shardwright_workers 1.0",
        "shardwright_outdated_plans 0.0",
        "shardwright_plan_gap_count 1.0",
        'shardwright_solves_total{result="feasible"} 1.0',
        'shardwright_plan_requests_total{met="plan"} 1.0',
        'shardwright_plan_requests_total{met="nothing"} 1.0',
        'shardwright_jobs{state="succeeded"} 1.0',
    } <= lines
