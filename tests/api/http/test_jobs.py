import json

from fastapi.testclient import TestClient

from tests.api.http.server import decoder_request


def events_of(text: str) -> list[tuple[str, dict, str]]:
    """(event, data, id) of a stream, comments left out."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


def test_a_stream_tells_progress_and_ends_with_the_job(client: TestClient) -> None:
    job = client.post("/v1/plans", params={"wait": 0}, json=decoder_request(12)).json()
    with client.stream("GET", job["links"]["events"]) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.read().decode())
    (last_event, ended, _) = events[-1]
    assert last_event == "done"
    assert ended["state"] == "succeeded"
    assert {event for event, _, _ in events[:-1]} <= {"progress", "provisional"}
    progress = [event for event in events if event[0] == "progress"]
    sequences = [data["sequence"] for _, data, _ in progress]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) >= 2
    assert progress[-1][1] == ended["progress"]
    bounds = [data["bound_ns"] for _, data, _ in progress if data["bound_ns"] is not None]
    assert bounds
    resumed = client.get(job["links"]["events"], headers={"Last-Event-ID": str(sequences[-2])})
    assert [data for _, data, _ in events_of(resumed.text)] == [progress[-1][1], ended]


def test_a_failed_job_shows_its_problem(client: TestClient) -> None:
    request = decoder_request()
    request["workload"] = {**request["workload"], "compile": True}
    link = client.post("/v1/plans", params={"wait": 0}, json=request).headers["Location"]
    answer = client.post("/v1/plans", json=request)
    assert answer.status_code == 422
    job = client.get(link).json()
    assert (job["state"], job["plan_id"], job["problem"]) == ("failed", None, answer.json())
    (done,) = events_of(client.get(job["links"]["events"]).text)
    assert done[:2] == ("done", job)
    assert 'shardwright_jobs{state="failed"} 1.0' in client.get("/metrics").text


def test_lists_of_jobs(client: TestClient) -> None:
    for num_layers in (1, 2):
        client.post("/v1/plans", json=decoder_request(num_layers))
    refused = decoder_request(1)
    client.post("/v1/plans", json={**refused, "workload": {**refused["workload"], "compile": True}})
    everything = client.get("/v1/jobs").json()["items"]
    assert [job["state"] for job in everything] == ["failed", "succeeded", "succeeded"]
    assert everything[1] == client.get(everything[1]["links"]["self"]).json()
    assert client.get("/v1/jobs", params={"state": "succeeded"}).json() == {"items": everything[1:], "next": None}
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    second = client.get("/v1/jobs", params={"limit": 2, "cursor": first["next"]}).json()
    assert first["items"] + second["items"] == everything
    assert client.get("/v1/jobs", params={"state": "lost"}).status_code == 422


def test_unknown_jobs(client: TestClient) -> None:
    for path in ("/v1/jobs/nothing", "/v1/jobs/nothing/events"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
