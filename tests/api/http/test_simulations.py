"""Simulations, and what is worked out from a plan."""

import json

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, REQUEST
from planner.explain import diff
from planner.schema import Decisions, Plan, PlanRequest, Predictions
from planner.simulate import predict
from planner.simulate.timeline import timeline_of
from tests.api.http.server import decoder_request, running_client

UNKNOWN = f"sha256:{'0' * 64}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    url = f"sqlite:///{tmp_path_factory.mktemp('simulations') / 'test.db'}"
    with running_client(url, max_simulated_calls=6) as client:
        yield client


@pytest.fixture(scope="module")
def plan(client: TestClient) -> Plan:
    return Plan.from_json(client.post("/v1/plans", json=REQUEST).content)


@pytest.fixture(scope="module")
def infeasible(client: TestClient) -> str:
    answer = client.post("/v1/plans", json={**REQUEST, "limits": {"memory_bytes": 1000}})
    return answer.json()["envelope"]["plan_id"]


def test_a_plan_without_a_change_costs_what_it_says(client: TestClient, plan: Plan) -> None:
    answer = client.post("/v1/simulations", json={"plan": plan.envelope.plan_id})
    assert answer.status_code == 200
    found = answer.json()
    assert Predictions.model_validate(found["predictions"]) == plan.body.predictions
    assert Decisions.model_validate(found["decisions"]) == plan.body.decisions
    assert (found["fits"], found["why_not"], found["notes"]) == (True, [], [])
    assert found["request_hash"] == plan.body.inputs.request


def test_a_change_is_predicted_as_the_command_line_does(client: TestClient, plan: Plan) -> None:
    change = {"micro_batch": 2, "memory_bytes": 10_000_000}
    found = client.post("/v1/simulations", json={"plan": plan.envelope.plan_id, "change": change}).json()
    workload = {**REQUEST["workload"], "micro_batch": 2}
    request = PlanRequest.from_object({**REQUEST, "workload": workload, "limits": {"memory_bytes": 10_000_000}})
    decisions = Decisions.model_validate(found["decisions"])
    assert decisions.micro_batch == 2
    assert Predictions.model_validate(found["predictions"]) == predict(request, decisions)
    over = found["predictions"]["peak"]["reserved_bytes"] - 10_000_000
    assert found["fits"] is False
    assert found["why_not"] == [f"{over} bytes over the memory budget of 10000000"]


def test_decisions_by_hand_for_a_request_by_reference(client: TestClient, plan: Plan) -> None:
    assert plan.body.decisions is not None
    decisions = plan.body.decisions.model_dump(mode="json")
    cluster = client.post("/v1/clusters", json=CLUSTER).json()["content_hash"]
    body = {"request": {**REQUEST, "cluster": cluster}, "decisions": decisions}
    found = client.post("/v1/simulations", json=body).json()
    assert found["predictions"]["step_time_ns"] == plan.body.predictions.step_time_ns
    decisions["units"][0]["modules"] = ["layers.99"]
    problem = client.post("/v1/simulations", json={"request": REQUEST, "decisions": decisions})
    assert problem.status_code == 422
    assert "layers.99" in problem.json()["detail"]


def test_what_cannot_be_predicted_is_a_clear_problem(client: TestClient, plan: Plan, infeasible: str) -> None:
    def problem(status: int, **body: object) -> dict:
        answer = client.post("/v1/simulations", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    plan_id = plan.envelope.plan_id
    assert problem(422)["code"] == "invalid_document"
    assert problem(422, plan=plan_id, request=REQUEST)["code"] == "invalid_document"
    assert problem(422, plan=UNKNOWN)["code"] == "unknown_reference"
    assert problem(409, plan=infeasible)["code"] == "no_decisions"
    assert "take a global batch of" in problem(422, plan=plan_id, change={"micro_batch": 3})["detail"]
    assert "take 8 or 16" in problem(422, plan=plan_id, change={"num_ranks": 12})["detail"]


def test_a_large_model_is_refused(client: TestClient) -> None:
    plan_id = client.post("/v1/plans", json=decoder_request(4)).json()["envelope"]["plan_id"]
    answers = [client.post("/v1/simulations", json={"plan": plan_id})]
    answers += [client.get(f"/v1/plans/{plan_id}/{part}") for part in ("memory", "streams", "timeline")]
    for answer in answers:
        assert answer.status_code == 422
        assert "7 calls; this server simulates at most 6 at once" in answer.json()["detail"]


def test_memory_and_streams_are_those_of_the_plan(client: TestClient, plan: Plan) -> None:
    predictions, link = plan.body.predictions, f"/v1/plans/{plan.envelope.plan_id}"
    assert predictions is not None
    memory = client.get(f"{link}/memory").json()
    peak = memory["peak_index"]
    assert memory["agrees"] is True
    assert memory["total_bytes"][peak] == predictions.peak.allocated_bytes
    assert memory["moments"][peak] == predictions.peak.moment
    for category, size in predictions.peak.by_category_bytes.items():
        assert memory["by_category_bytes"][category][peak] == size
    for index, total in enumerate(memory["total_bytes"]):
        assert sum(values[index] for values in memory["by_category_bytes"].values()) == total
    assert memory["budget_bytes"] == predictions.budget.budget_bytes
    assert memory["reserved_bytes"] == predictions.peak.reserved_bytes
    few = client.get(f"{link}/memory", params={"points": 4}).json()
    assert len(few["times_ns"]) < len(memory["times_ns"]) == memory["num_points"]
    assert few["total_bytes"][few["peak_index"]] == predictions.peak.allocated_bytes

    streams = client.get(f"{link}/streams").json()
    for part, stalled in streams["stalled_ns"].items():
        assert stalled == getattr(predictions.breakdown, part)
    assert streams["step_time_ns"] == predictions.step_time_ns
    half = client.get(f"{link}/streams", params={"start_ns": 0, "end_ns": streams["shown_ns"] // 2}).json()
    assert len(half["tracks"]["compute"]) < len(streams["tracks"]["compute"])


def test_the_timeline_is_the_trace_of_the_command_line(client: TestClient, plan: Plan) -> None:
    assert plan.body.decisions is not None
    link = f"/v1/plans/{plan.envelope.plan_id}/timeline"
    answer = client.get(link)
    request = PlanRequest.from_object(REQUEST)
    name = f"{request.model.name} on {request.cluster.name}"
    expected = timeline_of(request, plan.body.decisions).chrome_trace(name)
    assert answer.json() == json.loads(json.dumps(expected))
    again = client.get(link, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_any_two_plans_can_be_compared(client: TestClient, plan: Plan, infeasible: str) -> None:
    other = Plan.from_json(client.post("/v1/plans", json=decoder_request(3)).content)
    first, second = plan.envelope.plan_id, other.envelope.plan_id
    found = client.get(f"/v1/plans/{first}/diff", params={"with": second}).json()
    assert [change["words"] for change in found["changes"]] == [one.words for one in diff(plan.body, other.body)]
    assert list(found["inputs"]) == ["model"]
    same = client.get(f"/v1/plans/{first}/diff", params={"with": first}).json()
    assert (same["inputs"], same["changes"]) == ({}, [])
    failed = client.get(f"/v1/plans/{first}/diff", params={"with": infeasible}).json()
    assert "outcome: feasible -> infeasible" in [change["words"] for change in failed["changes"]]
    assert client.get(f"/v1/plans/{first}/diff", params={"with": UNKNOWN}).status_code == 404


def test_nothing_is_shown_of_plans_that_are_not_there_or_decide_nothing(
    client: TestClient, infeasible: str
) -> None:
    for part in ("memory", "streams", "timeline"):
        assert client.get(f"/v1/plans/{UNKNOWN}/{part}").status_code == 404
        answer = client.get(f"/v1/plans/{infeasible}/{part}")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_decisions")
