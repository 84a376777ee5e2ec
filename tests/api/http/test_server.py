import os
import signal
import threading

import pytest

from api.http import RemoteAddressRefused, serve
from api.service.callers import Scope
from api.service.keys import KeyService, NewKey
from planner.schema.errors import ShardwrightError
from profiles_db import migrations
from profiles_db.engine import Database, DatabaseInUse, DatabaseUnavailable
from tests.api.http.server import FAST, bearer, decoder_request, is_gone, wait_until

LONG = decoder_request(24)


def test_sixteen_equal_requests_share_one_planner(start_server, database_url: str) -> None:
    server = start_server(database_url)
    request, answers = decoder_request(16, **FAST), []

    def post() -> None:
        answers.append(server.http.post("/v1/plans", params={"wait": 300}, json=request))

    threads = [threading.Thread(target=post) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 16
    assert len({answer.content for answer in answers}) == 1
    assert "shardwright_planner_starts_total 1.0" in server.http.get("/metrics").text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_in_the_middle_resumes_the_job(start_server, database_url: str, how: int) -> None:
    first = start_server(database_url)
    answer = first.http.post("/v1/plans", params={"wait": 0}, json=LONG)
    assert answer.status_code == 202
    link = answer.headers["Location"]
    wait_until(lambda: first.http.get(link).json()["progress"] is not None)
    planners = first.child_pids()
    assert len(planners) == 1
    first.end(how)
    wait_until(lambda: is_gone(planners[0]))

    second = start_server(database_url)
    job = second.http.get(link).json()
    assert job["state"] in ("queued", "running")
    plan = second.http.post("/v1/plans", params={"wait": 300}, json=LONG)
    assert plan.status_code == 200
    assert second.http.get(link).json()["plan_id"] == plan.json()["envelope"]["plan_id"]
    assert "shardwright_planner_starts_total 1.0" in second.http.get("/metrics").text


def test_a_job_that_keeps_killing_its_server_is_parked(start_server, sqlite_url: str) -> None:
    link = ""
    for _ in range(2):
        server = start_server(sqlite_url, SHARDWRIGHT_MAX_STARTS="2")
        link = server.http.post("/v1/plans", params={"wait": 0}, json=LONG).headers["Location"]
        wait_until(server.child_pids)
        server.end(signal.SIGKILL)
    server = start_server(sqlite_url, SHARDWRIGHT_MAX_STARTS="2")
    wait_until(lambda: server.http.get(link).json()["state"] == "parked")
    problem = server.http.get(link).json()["problem"]
    assert problem["code"] == "job_given_up"
    assert "started 2 times, and the last time the process that ran it died" in problem["detail"]
    again = server.http.post("/v1/plans", params={"wait": 0}, json=LONG).json()
    assert again["attempt"] == 2


def test_a_planner_that_takes_too_long_is_stopped(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_PLANNER_WALL_S="1.5")
    answer = server.http.post("/v1/plans", params={"wait": 300}, json=LONG)
    assert (answer.status_code, answer.json()["code"]) == (504, "planner_timeout")
    wait_until(lambda: not server.child_pids())


def test_a_planner_that_needs_too_much_memory_is_stopped(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_PLANNER_MEMORY_BYTES=str(64 * 2**20))
    answer = server.http.post("/v1/plans", params={"wait": 300}, json=LONG)
    assert answer.status_code == 500
    assert answer.json()["code"] in ("planner_out_of_memory", "planner_failed")
    assert server.http.get("/healthz").status_code == 200


def kill_planner(server) -> None:
    wait_until(server.child_pids)
    (planner,) = server.child_pids()
    os.kill(planner, signal.SIGKILL)
    wait_until(lambda: is_gone(planner))


def test_a_killed_planner_is_started_again(start_server, database_url: str) -> None:
    server = start_server(database_url)
    link = server.http.post("/v1/plans", params={"wait": 0}, json=LONG).headers["Location"]
    kill_planner(server)
    plan = server.http.post("/v1/plans", params={"wait": 300}, json=LONG)
    assert plan.status_code == 200
    assert plan.json()["envelope"]["job_id"] == server.http.get(link).json()["job_id"]
    assert "shardwright_planner_starts_total 2.0" in server.http.get("/metrics").text


def test_a_job_whose_planner_is_always_killed_is_parked(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_MAX_STARTS="2")
    link = server.http.post("/v1/plans", params={"wait": 0}, json=LONG).headers["Location"]
    for _ in range(2):
        kill_planner(server)
    wait_until(lambda: server.http.get(link).json()["state"] == "parked")
    problem = server.http.get(link).json()["problem"]
    assert problem["code"] == "job_given_up"
    assert "started 2 times, and the last time the planner was killed by signal 9" in problem["detail"]
    again = server.http.post("/v1/plans", params={"wait": 300}, json=LONG)
    assert again.status_code == 200
    assert again.json()["envelope"]["job_id"].endswith(":2")


def test_two_servers_cannot_share_a_file(start_server, sqlite_url: str) -> None:
    start_server(sqlite_url)
    with pytest.raises(DatabaseInUse, match="in use by another server"):
        serve(port=0, database_url=sqlite_url)


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot use postgresql") as caught:
        serve(port=0, database_url="postgresql://user:hunter2@127.0.0.1:9/nothing?connect_timeout=2")
    assert "hunter2" not in str(caught.value)


def test_two_servers_share_postgresql(start_server, postgresql_url: str) -> None:
    first, second = start_server(postgresql_url), start_server(postgresql_url)
    request = decoder_request(3)
    job = first.http.post("/v1/plans", params={"wait": 0}, json=request).json()
    plan = second.http.post("/v1/plans", params={"wait": 30}, json=request)
    assert plan.status_code == 200
    assert plan.json()["envelope"]["job_id"] == job["job_id"]
    assert first.http.post("/v1/plans", json=request).content == plan.content


def test_the_log_is_json_with_ids_and_without_secrets(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_SECRET_TOKEN="hunter2")
    answer = server.http.post("/v1/plans", json=decoder_request(), headers={"X-Request-ID": "launch-7"})
    server.end()
    entries = [entry for entry in server.log if entry.get("request_id") == "launch-7"]
    assert entries[-1]["status"] == 200
    assert entries[-1]["plan_id"] == answer.json()["envelope"]["plan_id"]
    assert entries[-1]["job_id"] == answer.json()["envelope"]["job_id"]
    finished = next(entry for entry in server.log if entry["event"] == "job_finished")
    assert finished["plan_id"] == answer.json()["envelope"]["plan_id"]
    assert finished["job_id"] == answer.json()["envelope"]["job_id"]
    assert "hunter2" not in str(server.log)
    assert server.process.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_addresses_of_other_machines_are_refused(host: str, sqlite_url: str) -> None:
    with pytest.raises(RemoteAddressRefused, match="reached from other machines"):
        serve(host=host, port=0, database_url=sqlite_url)


def test_with_a_key_other_machines_are_served_and_need_it(start_server, sqlite_url: str) -> None:
    database = Database(sqlite_url)
    migrations.upgrade(database)
    token = KeyService(database).create("default", NewKey(name="a", scopes=(Scope.READ,))).token
    database.close()
    server = start_server(sqlite_url, SHARDWRIGHT_HOST="0.0.0.0")
    assert server.http.get("/v1/whoami").status_code == 401
    assert server.http.get("/v1/whoami", headers=bearer(token)).status_code == 200
    server.end()
    assert token not in str(server.log)
    assert token.split("_", 2)[2] not in str(server.log)
    asked = [entry for entry in server.log if entry["event"] == "request"]
    assert [entry.get("tenant") for entry in asked] == [None, "default"]
    assert asked[1]["caller"] == f"key:{token.split('_')[1]}"


def test_required_keys_are_asked_for_before_the_first_is_made(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_HOST="0.0.0.0", SHARDWRIGHT_REQUIRE_KEYS="true")
    assert server.http.get("/v1/whoami").status_code == 401
    assert "no_keys" in [entry["event"] for entry in server.log]


def test_a_trusted_network_is_served_without_keys(start_server, sqlite_url: str) -> None:
    server = start_server(sqlite_url, SHARDWRIGHT_HOST="0.0.0.0", SHARDWRIGHT_ALLOW_REMOTE="true")
    assert server.http.get("/v1/whoami").json()["name"] == "anonymous"


def test_a_taken_port_is_named(start_server, sqlite_url: str, tmp_path) -> None:
    server = start_server(sqlite_url)
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ShardwrightError, match=f"port {port}"):
        serve(port=port, database_url=f"sqlite:///{tmp_path / 'other.db'}")
