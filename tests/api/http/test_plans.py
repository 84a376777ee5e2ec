from fastapi.testclient import TestClient
from sqlalchemy import select

from api.http.examples import CLUSTER, MODEL, PROFILE
from api.http.examples import REQUEST as EXAMPLE
from planner.schema import ModelDescription, Plan, PlanRequest, block_hash
from profiles_db.retention import PRUNED
from profiles_db.tables import JobRow, JobState
from tests.api.http.server import FAST, REQUEST, decoder_request


def test_a_request_gives_a_plan_and_the_same_bytes_again(client: TestClient) -> None:
    first = client.post("/v1/plans", json=REQUEST)
    assert first.status_code == 200
    plan = Plan.from_json(first.content)
    assert plan.verify()
    assert plan.body.outcome == "feasible"
    assert plan.body.inputs.request == PlanRequest.from_object(REQUEST).content_hash()
    plan_id = plan.envelope.plan_id
    assert first.headers["ETag"] == f'"{plan_id}"'
    assert first.headers["Content-Location"] == f"/v1/plans/{plan_id}"
    assert plan.envelope.created_at
    second = client.post("/v1/plans", json=PlanRequest.from_object(REQUEST).model_dump(mode="json"))
    assert second.content == first.content
    assert client.get(f"/v1/plans/{plan_id}").content == first.content
    assert "shardwright_planner_starts_total 1.0" in client.get("/metrics").text
    not_modified = client.get(f"/v1/plans/{plan_id}", headers={"If-None-Match": first.headers["ETag"]})
    assert (not_modified.status_code, not_modified.content) == (304, b"")
    unknown = client.get(f"/v1/plans/sha256:{'0' * 64}", headers={"If-None-Match": "*"})
    assert unknown.status_code == 404


def test_the_same_bytes_are_the_same_request_until_its_plan_is_gone(client: TestClient) -> None:
    first, again = client.post("/v1/plans", json=REQUEST), client.post("/v1/plans", json=REQUEST)
    assert again.content == first.content
    assert "shardwright_planner_starts_total 1.0" in client.get("/metrics").text
    assert 'shardwright_plan_requests_total{met="plan"} 1.0' in client.get("/metrics").text
    with client.app.state.services.database.write() as session:
        job = session.scalars(select(JobRow)).one()
        job.state, job.plan_id, job.problem = JobState.FAILED, None, PRUNED
    assert client.post("/v1/plans", json=REQUEST).status_code == 200
    assert "shardwright_planner_starts_total 2.0" in client.get("/metrics").text


def test_the_body_of_a_plan_is_what_the_planner_makes_without_a_server(client: TestClient) -> None:
    from planner.plan import make_plan

    served = Plan.from_json(client.post("/v1/plans", json=REQUEST).content)
    assert served.body.canonical_bytes() == make_plan(PlanRequest.from_object(REQUEST)).body.canonical_bytes()


def test_documents_by_reference_are_the_same_request(client: TestClient) -> None:
    inline = client.post("/v1/plans", json={**REQUEST, "profile": PROFILE})
    stored = {
        "model": client.post("/v1/models", json=MODEL).json()["content_hash"],
        "cluster": client.post("/v1/clusters", json=CLUSTER).json()["content_hash"],
        "profile": client.post("/v1/profiles", json=PROFILE).json()["content_hash"],
    }
    by_reference = client.post("/v1/plans", json={**REQUEST, **stored})
    assert by_reference.status_code == 200
    assert by_reference.content == inline.content
    mixed = client.post("/v1/plans", json={**REQUEST, **stored, "cluster": CLUSTER})
    assert mixed.content == inline.content


def test_the_newest_profile_of_this_model_and_cluster_is_found(client: TestClient) -> None:
    asked = {**REQUEST, "profile": "newest"}
    none_yet = client.post("/v1/plans", json=asked)
    assert none_yet.status_code == 422
    assert none_yet.json()["code"] == "unknown_reference"
    assert "whose cluster is 'two nodes of eight' to /v1/profiles first" in none_yet.json()["detail"]
    block = block_hash(ModelDescription.from_object(MODEL), "layer")
    (call,) = PROFILE["calls"]
    hashes = []
    for forward_ns in (61_000, 62_000):
        calls = [{**call, "block": block, "forward_ns": forward_ns}]
        profile = {**PROFILE, "calls": calls, "cluster": CLUSTER["name"]}
        hashes.append(client.post("/v1/profiles", json=profile).json()["content_hash"])
        plan = Plan.from_json(client.post("/v1/plans", json=asked).content)
        assert plan.body.inputs.profile == hashes[-1]
    assert hashes[0] != hashes[1]


def test_a_profile_that_cannot_be_true_is_not_stored(client: TestClient) -> None:
    points = [{"size_bytes": size, "duration_ns": time} for size, time in ((2**20, 9_000_000), (2**24, 20_000))]
    profile = {"name": "odd", "collectives": [{"collective": "all_gather", "num_ranks": 8, "points": points}]}
    answer = client.post("/v1/profiles", json=profile)
    assert (answer.status_code, answer.json()["code"]) == (422, "implausible_profile")
    assert "profile.collectives[0].points[" in answer.json()["detail"]


def test_an_unknown_reference_says_where(client: TestClient) -> None:
    unknown = f"sha256:{'0' * 64}"
    answer = client.post("/v1/plans", json={**REQUEST, "cluster": unknown})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "unknown_reference"
    assert problem["problems"][0]["path"] == "cluster"
    assert "/v1/clusters" in problem["detail"]


def test_nothing_fits_is_a_result(client: TestClient) -> None:
    request = {**REQUEST, "limits": {"memory_bytes": 1000}}
    answer = client.post("/v1/plans", json=request)
    assert answer.status_code == 200
    assert answer.json()["body"]["outcome"] == "infeasible"
    assert answer.json()["body"]["infeasibility"]["reason"]
    listed = client.get("/v1/plans", params={"outcome": "infeasible"}).json()["items"]
    assert [item["plan_id"] for item in listed] == [answer.json()["envelope"]["plan_id"]]
    assert client.get("/v1/plans", params={"outcome": "feasible"}).json()["items"] == []


def test_lists_can_be_filtered_and_paged(client: TestClient) -> None:
    for num_layers in (1, 2, 3):
        client.post("/v1/plans", json=decoder_request(num_layers, **FAST))
    everything = client.get("/v1/plans").json()["items"]
    assert len(everything) == 3
    one = everything[1]
    assert one["step_time_ns"] > 0
    assert one["world_size"] == 16
    by_model = client.get("/v1/plans", params={"model": one["model"]}).json()["items"]
    assert by_model == [one]
    by_cluster = client.get("/v1/plans", params={"cluster": one["cluster"]}).json()["items"]
    assert by_cluster == everything
    first = client.get("/v1/plans", params={"limit": 2}).json()
    second = client.get("/v1/plans", params={"limit": 2, "cursor": first["next"]}).json()
    assert first["items"] + second["items"] == everything
    assert second["next"] is None


def test_a_job_for_who_does_not_wait(client: TestClient) -> None:
    answer = client.post("/v1/plans", params={"wait": 0}, json=decoder_request(4))
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["Location"] == job["links"]["self"] == f"/v1/jobs/{job['job_id']}"
    assert answer.headers["Retry-After"] == "1"
    assert job["state"] in ("queued", "running")
    plan = client.post("/v1/plans", json=decoder_request(4))
    assert plan.status_code == 200
    ended = client.get(job["links"]["self"]).json()
    assert ended["state"] == "succeeded"
    assert client.get(ended["links"]["plan"]).content == plan.content
    assert plan.json()["envelope"]["job_id"] == job["job_id"]
    assert ended["progress"]["incumbent_ns"] >= ended["progress"]["bound_ns"]


def test_what_the_planner_refuses_names_the_path_and_is_not_tried_again(client: TestClient) -> None:
    request = {**REQUEST, "workload": {**REQUEST["workload"], "compile": True}}
    for _ in range(2):
        answer = client.post("/v1/plans", json=request)
        assert answer.status_code == 422
        problem = answer.json()
        assert problem["code"] == "unsupported_field"
        assert problem["problems"][0]["path"] == "workload.compile"
    assert "shardwright_planner_starts_total 1.0" in client.get("/metrics").text


def test_parts_that_contradict_each_other(client: TestClient) -> None:
    request = {**REQUEST, "cluster": {**CLUSTER, "inter_node": None}}
    answer = client.post("/v1/plans", json=request)
    assert (answer.status_code, answer.json()["code"]) == (422, "inconsistent_request")
    assert "cluster.inter_node" in answer.json()["detail"]


def test_a_search_may_start_from_an_earlier_plan(client: TestClient) -> None:
    earlier = client.post("/v1/plans", json=REQUEST).json()
    none_fits = client.post("/v1/plans", json={**REQUEST, "limits": {"memory_bytes": 1000}}).json()
    bodies = []
    for start in (earlier, none_fits):
        answer = client.post("/v1/plans", json={**REQUEST, "warm_start": start["envelope"]["plan_id"]})
        assert answer.status_code == 200
        bodies.append(answer.json()["body"])
    assert [body["decisions"] for body in bodies] == [earlier["body"]["decisions"]] * 2
    unknown = client.post("/v1/plans", json={**REQUEST, "warm_start": f"sha256:{'0' * 64}"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_reference")


def test_a_request_with_atoms_is_planned(client: TestClient) -> None:
    atoms = [{"parameters": "layers.*", "atom": {"type": "whole"}}]
    able = {**EXAMPLE, "search": {"gap": 0.5}}
    answer = client.post("/v1/plans", json={**able, "workload": {**able["workload"], "atoms": atoms}})
    assert answer.status_code == 200, answer.text
    without = client.post("/v1/plans", json=able)
    assert answer.json()["body"]["inputs"]["request"] != without.json()["body"]["inputs"]["request"]
