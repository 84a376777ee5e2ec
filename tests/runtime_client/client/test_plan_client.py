"""The client against a real HTTP server that behaves and misbehaves."""

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.http.examples import MEASUREMENT
from planner.schema import Certificate, InvalidDocument, Measurement, Plan, PlanRequest
from runtime_client.async_client import AsyncPlanClient
from runtime_client.cache import PlanCache, PlanKey, default_cache_dir
from runtime_client.client import PlanClient, load_plan
from runtime_client.errors import ClientError, NoPlanAvailable, PlanIdentityMismatch, PlanServiceError
from tests.planner.factories import tiny_request
from tests.real.launch import free_port
from tests.runtime_client.client.http_server import ScriptedServer, problem, reply, scripted_server
from tests.runtime_client.plans import body, decisions, unit

JOB = "default:sha256:1:0.1.0:1"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with scripted_server() as running:
        yield running


@pytest.fixture(scope="module")
def request_() -> PlanRequest:
    return tiny_request()


@pytest.fixture(scope="module")
def plan(request_: PlanRequest) -> Plan:
    made = body(
        decisions((unit("blocks.0"), unit("")), shard=request_.cluster.num_devices),
        fingerprint=request_.model.fingerprint,
        workload=request_.workload.content_hash(),
    )
    return Plan.of(made)


def wire(plan: Plan) -> object:
    return json.loads(plan.to_json())


def job(state: str, plan_id: str | None = None, **fields: object) -> dict[str, object]:
    return {"job_id": JOB, "state": state, "plan_id": plan_id, "problem": None, **fields}


def client(server: ScriptedServer, tmp_path: Path, *, deadline_s: float = 20.0) -> PlanClient:
    return PlanClient(server.url, api_key="secret", deadline_s=deadline_s, cache_dir=tmp_path / "cache")


def test_plan_from_the_service(server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)))
    found = client(server, tmp_path).plan(request_)
    assert (found.plan, found.source, found.stale) == (plan, "service", False)
    assert PlanRequest.from_json(server.bodies[0]) == request_
    assert server.authorization == ["Bearer secret"]
    assert server.asked[0].startswith("POST /v1/plans?wait=1")


def test_job_is_polled_until_its_plan_is_there(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    plan_id = plan.envelope.plan_id
    server.on("POST /v1/plans", reply(202, job("queued"), Location=f"/v1/jobs/{JOB}", Retry_After="0"))
    server.on(
        f"GET /v1/jobs/{JOB}",
        reply(200, job("running"), Retry_After="0"),
        reply(200, job("succeeded", plan_id)),
    )
    server.on(f"GET /v1/plans/{plan_id}", reply(200, wire(plan)))
    assert client(server, tmp_path).plan(request_).plan == plan
    assert [line.partition("?")[0] for line in server.asked] == [
        "POST /v1/plans",
        f"GET /v1/jobs/{JOB}",
        f"GET /v1/jobs/{JOB}",
        f"GET /v1/plans/{plan_id}",
    ]


def test_failed_job_raises_the_problem_of_the_server(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest
) -> None:
    why = {
        "title": "Unprocessable",
        "status": 422,
        "detail": "workload.compile is not honoured",
        "code": "unsupported",
    }
    server.on("POST /v1/plans", reply(202, job("failed", problem=why)))
    with pytest.raises(
        PlanServiceError, match=r"Unprocessable \(HTTP 422\): workload.compile is not honoured"
    ) as error:
        client(server, tmp_path).plan(request_)
    assert error.value.problem_code == "unsupported"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_refusals_are_raised_even_when_a_plan_is_cached(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan, status: int
) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)), problem(status, "No", "model.calls[3]: unknown kind"))
    asking = client(server, tmp_path)
    asking.plan(request_)
    with pytest.raises(PlanServiceError, match=r"model.calls\[3\]: unknown kind") as error:
        asking.plan(request_)
    assert (error.value.status, error.value.title) == (status, "No")


def test_redirects_are_not_followed(server: ScriptedServer, tmp_path: Path, request_: PlanRequest) -> None:
    server.on("POST /v1/plans", reply(307, {}, Location="http://elsewhere.example/v1/plans"))
    with pytest.raises(PlanServiceError, match=r"it moved to http://elsewhere\.example"):
        client(server, tmp_path).plan(request_)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_retry_after_is_honoured(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan, status: int
) -> None:
    server.on("POST /v1/plans", problem(status, "Busy", "later", Retry_After="1"), reply(200, wire(plan)))
    start = time.monotonic()
    assert client(server, tmp_path).plan(request_).source == "service"
    assert time.monotonic() - start >= 1.0
    assert len(server.asked) == 2


def test_retry_after_beyond_the_deadline_is_not_waited_for(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest
) -> None:
    server.on("POST /v1/plans", problem(503, "Down", "maintenance", Retry_After="Fri, 01 Jan 2100 00:00:00 GMT"))
    with pytest.raises(NoPlanAvailable, match=r"Down \(HTTP 503\): maintenance"):
        client(server, tmp_path, deadline_s=60.0).plan(request_)
    assert len(server.asked) == 1


def test_lost_connection_is_retried(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", lambda handler: handler.connection.close(), reply(200, wire(plan)))
    assert client(server, tmp_path).plan(request_).source == "service"


@pytest.mark.parametrize("cut", [1, 200])
def test_truncated_answer_is_retried(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan, cut: int
) -> None:
    half = json.dumps(wire(plan))[:-cut]
    server.on("POST /v1/plans", reply(200, wire(plan), cut=cut), reply(200, half), reply(200, wire(plan)))
    assert client(server, tmp_path).plan(request_).plan == plan
    assert len(server.asked) == 3


def test_truncated_answers_all_the_way_give_no_plan(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", reply(200, json.dumps(wire(plan))[:-40]))
    with pytest.raises(NoPlanAvailable, match="is not a valid plan_envelope"):
        client(server, tmp_path, deadline_s=1.0).plan(request_)


def altered(plan: Plan) -> Plan:
    return plan.model_copy(update={"body": plan.body.model_copy(update={"name": "changed on the way"})})


def test_wrong_identity_is_never_returned_nor_cached(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", reply(200, wire(altered(plan))))
    with pytest.raises(NoPlanAvailable, match=f"should be plan {plan.envelope.plan_id}, but its body is"):
        client(server, tmp_path, deadline_s=1.0).plan(request_)
    assert not list(tmp_path.glob("cache/*"))


def test_job_must_lead_to_its_own_plan(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    other = "sha256:" + "1" * 64
    server.on("POST /v1/plans", reply(202, job("succeeded", other)))
    server.on(f"GET /v1/plans/{other}", reply(200, wire(plan)))
    with pytest.raises(NoPlanAvailable, match=f"should be plan {other}"):
        client(server, tmp_path, deadline_s=1.0).plan(request_)


def test_plan_of_another_model_is_refused(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    other = Plan.of(plan.body.model_copy(update={"model_fingerprint": "sha256:" + "2" * 64}))
    server.on("POST /v1/plans", reply(200, wire(other)))
    with pytest.raises(NoPlanAvailable, match="it is for model sha256:2222"):
        client(server, tmp_path).plan(request_)


def test_infeasible_plan_is_an_answer_but_not_a_good_one(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest
) -> None:
    infeasible = Plan.of(
        body(None, fingerprint=request_.model.fingerprint, world_size=request_.cluster.num_devices)
    )
    server.on("POST /v1/plans", reply(200, wire(infeasible)))
    assert client(server, tmp_path).plan(request_).plan == infeasible
    assert not list(tmp_path.glob("cache/*"))


def test_server_down_gives_the_last_good_plan_marked_stale(
    server: ScriptedServer,
    tmp_path: Path,
    request_: PlanRequest,
    plan: Plan,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)))
    client(server, tmp_path).plan(request_)
    down = PlanClient(f"http://127.0.0.1:{free_port()}", deadline_s=1.0, cache_dir=tmp_path / "cache")
    with caplog.at_level(logging.WARNING):
        found = down.plan(request_)
    assert (found.plan, found.source, found.stale) == (plan, "cache", True)
    assert 0.0 <= found.age_s < 600.0
    assert "ConnectError" in found.reason
    assert found.reason in caplog.text


def test_server_down_without_a_cached_plan_is_refused(tmp_path: Path, request_: PlanRequest) -> None:
    down = PlanClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.5, cache_dir=tmp_path)
    with pytest.raises(
        NoPlanAvailable, match=r"gave no plan within 0\.5 s.*holds no plan.*load a plan from a file"
    ):
        down.plan(request_)


def test_silent_server_does_not_hold_the_job_up(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)), server.hang())
    client(server, tmp_path).plan(request_)
    assert client(server, tmp_path, deadline_s=1.0).plan(request_).stale


def test_job_that_outlasts_the_deadline_gives_the_cached_plan(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)), reply(202, job("queued"), Retry_After="0"))
    server.on(f"GET /v1/jobs/{JOB}", reply(200, job("running"), Retry_After="0"))
    client(server, tmp_path).plan(request_)
    found = client(server, tmp_path, deadline_s=1.0).plan(request_)
    assert found.stale
    assert "is still running" in found.reason


def test_at_the_deadline_the_best_plan_so_far_will_do_and_is_not_cached(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    unproven = Certificate(value=5, lower_bound=1, gap=0.8, status="provisional")
    best = Plan.of(plan.body.model_copy(update={"certificate": unproven}))
    plan_id = best.envelope.plan_id
    server.on("POST /v1/plans", reply(202, job("queued"), Retry_After="0"))
    found = job("running", provisional_plan_id=plan_id)
    server.on(
        f"GET /v1/jobs/{JOB}", reply(200, job("running"), Retry_After="0"), reply(200, found, Retry_After="2")
    )
    server.on(f"GET /v1/plans/{plan_id}", reply(200, wire(best)))
    answer = client(server, tmp_path, deadline_s=2.0).plan(request_)
    assert (answer.plan, answer.source, answer.stale, answer.is_provisional) == (best, "service", False, True)
    assert PlanCache(tmp_path / "cache").load(PlanKey.of(request_)) is None


def test_cached_plan_of_another_workload_is_not_used(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)), server.hang())
    client(server, tmp_path).plan(request_)
    workload = request_.workload.model_copy(update={"sequence": request_.workload.sequence + 1})
    with pytest.raises(NoPlanAvailable):
        client(server, tmp_path, deadline_s=0.5).plan(request_.model_copy(update={"workload": workload}))


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"stored_at_s": 0}', '{"stored_at_s": 0, "plan": {}}'])
def test_damaged_cache_file_is_ignored_with_a_warning(
    tmp_path: Path, request_: PlanRequest, plan: Plan, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache, key = PlanCache(tmp_path), PlanKey.of(request_)
    cache.store(key, plan)
    cache.path_of(key).write_text(damage)
    assert cache.load(key) is None
    assert f"cached plan {cache.path_of(key)} is ignored" in caplog.text


def test_altered_plan_in_the_cache_is_ignored(
    tmp_path: Path, request_: PlanRequest, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    cache, key = PlanCache(tmp_path), PlanKey.of(request_)
    cache.store(key, altered(plan))
    assert cache.load(key) is None
    assert "its body is not that of plan" in caplog.text


def test_cache_keeps_the_newest_and_leaves_no_scraps(tmp_path: Path, request_: PlanRequest, plan: Plan) -> None:
    cache, key = PlanCache(tmp_path / "a" / "b"), PlanKey.of(request_)
    newer = Plan.of(plan.body.model_copy(update={"planner_version": "1"}))
    cache.store(key, plan)
    cache.store(key, newer)
    cached = cache.load(key)
    assert cached is not None
    assert cached.plan == newer
    assert [path.name for path in cache.directory.iterdir()] == [cache.path_of(key).name]


def test_directory_that_cannot_be_written_costs_only_a_warning(
    tmp_path: Path, request_: PlanRequest, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    PlanCache(tmp_path / "file").store(PlanKey.of(request_), plan)
    assert "was not cached" in caplog.text


def test_default_directory_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/shardwright/plans")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/shardwright/plans")


@pytest.mark.parametrize("url", ["", "plans.example.com", "ftp://plans.example.com", "http://"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ClientError, match="is not an address"):
        PlanClient(url)


def test_load_plan_takes_plans_and_bodies(tmp_path: Path, plan: Plan) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    assert load_plan(file) == plan
    file.write_text(plan.body.to_json())
    assert load_plan(file).body == plan.body


def test_load_plan_refuses_what_is_damaged_or_missing(tmp_path: Path, plan: Plan) -> None:
    file = tmp_path / "plan.json"
    with pytest.raises(ClientError, match=r"plan\.json: No such file"):
        load_plan(file)
    file.write_text(plan.to_json()[:-30])
    with pytest.raises(InvalidDocument, match=r"plan\.json is not a valid plan_envelope"):
        load_plan(file)
    file.write_text(altered(plan).to_json())
    with pytest.raises(PlanIdentityMismatch, match="keep its body alone"):
        load_plan(file)


def test_client_needs_no_torch() -> None:
    code = "import sys, runtime_client.client; print('torch' in sys.modules, 'numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "False"]


def test_a_report_is_sent_until_it_is_taken_and_never_raises(
    server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measurement = Measurement.from_object(MEASUREMENT)
    server.on("POST /v1/measurements", reply(503, {}), reply(201, {}))
    assert client(server, tmp_path).report(measurement)
    assert Measurement.from_json(server.bodies[-1]) == measurement
    server.on("POST /v1/measurements", problem(404, "Not Found", "there is no plan"))
    assert not client(server, tmp_path).report(measurement)
    assert "did not take the report of steps 100 to 199" in caplog.text
    assert "there is no plan" in caplog.text
    server.on("POST /v1/measurements", server.hang())
    assert not client(server, tmp_path, deadline_s=0.2).report(measurement)
    away = PlanClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.2, cache_dir=tmp_path)
    assert not away.report(measurement)


def test_a_service_that_fails_again_and_again_is_not_asked_for_a_while(
    server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan
) -> None:
    """Answers come from the cache at once then, and a refusal is no failure."""
    asking = client(server, tmp_path, deadline_s=0.5)
    server.on("POST /v1/plans", problem(422, "No", "unknown"), reply(200, wire(plan)), problem(503, "Away", "busy"))
    with pytest.raises(PlanServiceError):
        asking.plan(request_)
    assert not asking.plan(request_).stale
    reasons = [asking.plan(request_).reason for _ in range(3)]
    assert not any("not asked" in reason for reason in reasons)
    num_asked = len(server.asked)
    last = asking.plan(request_)
    assert (last.plan, last.source) == (plan, "cache")
    assert "not asked, because it failed 3 times in a row" in last.reason
    assert len(server.asked) == num_asked


def test_plans_can_be_awaited(server: ScriptedServer, tmp_path: Path, request_: PlanRequest, plan: Plan) -> None:
    server.on("POST /v1/plans", reply(200, wire(plan)))
    awaited = AsyncPlanClient(client(server, tmp_path))

    async def ask() -> list[Plan]:
        found = await asyncio.gather(awaited.plan(request_), awaited.plan(request_))
        return [one.plan for one in found]

    assert asyncio.run(ask()) == [plan, plan]
