import gzip
import json
import select
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, MODEL, REQUEST
from api.service.errors import TooManyValues
from api.service.parsing import MAX_VALUES, parse_json
from tests.api.http.server import running_client

JSON = {"content-type": "application/json"}


def check_problem(answer, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "code", "problems"}
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:shardwright:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in answer.text
    return problem


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """One app for all: nothing in this module leaves anything behind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('problems') / 'test.db'}"
    else:
        url = request.getfixturevalue("create_postgresql")()
    with running_client(url, max_body_bytes=100_000) as client:
        yield client


def _request_with(**changes) -> bytes:
    return json.dumps({**REQUEST, **changes}).encode()


NOT_JSON = {
    "empty": b"",
    "cut off": b'{"model": ',
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "NaN": b'{"name": NaN}',
    "Infinity": b'{"name": -Infinity}',
    "nested too deep": b"[" * 20_000,
    "nested too deep, closed": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "digits without end": b'{"seed": ' + b"9" * 50_000 + b"}",
    "two documents": b"{} {}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("path", ["/v1/models", "/v1/clusters", "/v1/profiles", "/v1/plans"])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_a_400(client: TestClient, path: str, body: bytes) -> None:
    check_problem(client.post(path, content=body, headers=JSON), 400, "invalid_json")


NOT_A_REQUEST = {
    "an array": (b"[]", ""),
    "null": (b"null", ""),
    "a missing part": (b'{"model": {}}', "cluster"),
    "an unknown field": (_request_with(colour="red"), "colour"),
    "a wrong type": (_request_with(workload={**REQUEST["workload"], "micro_batch": "1"}), "workload.micro_batch"),
    "a float for an integer": (
        _request_with(workload={**REQUEST["workload"], "micro_batch": 1.5}),
        "workload.micro_batch",
    ),
    "too large for JSON readers": (
        _request_with(workload={**REQUEST["workload"], "sequence": 2**53}),
        "workload.sequence",
    ),
    "larger than any number": (_request_with(search={"gap": 77}).replace(b"77", b"1e999"), "search.gap"),
    "a name without end": (_request_with(cluster={**CLUSTER, "name": "x" * 201}), "cluster.name"),
    "not a hash": (_request_with(model="sha256:abc"), "model"),
    "a call of an unknown kind": (
        _request_with(model={**MODEL, "calls": [{"path": "embedding", "kind": "nothing"}]}),
        "model",
    ),
    "another schema version": (_request_with(schema_version=2), "schema_version"),
}


@pytest.mark.parametrize(("body", "path"), NOT_A_REQUEST.values(), ids=NOT_A_REQUEST.keys())
def test_what_is_not_a_request_names_the_path(client: TestClient, body: bytes, path: str) -> None:
    answer = client.post("/v1/plans", content=body, headers=JSON)
    problem = check_problem(answer, 422, "invalid_document")
    assert path in [item["path"] for item in problem["problems"]]


def test_too_many_problems_are_counted_not_listed(client: TestClient) -> None:
    body = _request_with(**{f"x{number}": 1 for number in range(1000)})
    problem = check_problem(client.post("/v1/plans", content=body, headers=JSON), 422, "invalid_document")
    assert len(problem["problems"]) == 1
    assert "1000 problems" in problem["detail"]


def test_too_many_values_are_refused_before_they_take_memory() -> None:
    with pytest.raises(TooManyValues):
        parse_json(b"[" + b"[]," * MAX_VALUES + b"[]]")


def test_what_the_caller_sent_is_not_sent_back_whole(client: TestClient) -> None:
    answer = client.post("/v1/plans", content=_request_with(**{"x" * 50_000: 1}), headers=JSON)
    check_problem(answer, 422, "invalid_document")
    assert len(answer.content) < 10_000


def test_an_integer_without_exact_form_is_refused(client: TestClient) -> None:
    body = _request_with(fixed=[{"knob": "layers.0.reshard_after_forward", "value": 2**60}])
    problem = check_problem(client.post("/v1/plans", content=body, headers=JSON), 422, "invalid_document")
    assert "9007199254740991" in problem["detail"]


def test_nul_in_a_name_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/clusters", json={**CLUSTER, "name": "a\x00b"})
    assert check_problem(answer, 422, "invalid_document")["problems"][0]["path"] == "name"
    answer = client.post("/v1/plans", json={**REQUEST, "cluster": {**CLUSTER, "name": "a\x00b"}})
    assert check_problem(answer, 422, "invalid_document")["problems"][0]["path"] == "cluster.name"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/plans?wait=1", "query.wait"),
        ("/v1/plans?wait=601", "query.wait"),
        ("/v1/plans?wait=-1", "query.wait"),
        ("/v1/plans?wait=nan", "query.wait"),
        ("/v1/plans?wait=x", "query.wait"),
    ],
)
def test_wait_has_a_range(client: TestClient, path: str, where: str) -> None:
    answer = client.post(path, content=b"{}", headers=JSON)
    if path.endswith("wait=1"):
        check_problem(answer, 422, "invalid_document")
        return
    assert check_problem(answer, 422, "invalid_parameter")["problems"][0]["path"] == where


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/plans?limit=0", "invalid_parameter"),
        ("/v1/plans?limit=201", "invalid_parameter"),
        ("/v1/plans?outcome=good", "invalid_parameter"),
        ("/v1/plans?model=sha256:abc", "invalid_parameter"),
        ("/v1/plans?cursor=%00", "invalid_cursor"),
        ("/v1/models?cursor=abc", "invalid_cursor"),
        ("/v1/plans/abc", "invalid_parameter"),
        ("/v1/plans/%00", "invalid_parameter"),
        ("/v1/jobs/a%00b", "invalid_parameter"),
        ("/v1/jobs/a%FFb", "invalid_parameter"),
    ],
)
def test_parameters_are_checked(client: TestClient, path: str, code: str) -> None:
    check_problem(client.get(path), 422, code)


def test_unknown_places_and_methods(client: TestClient) -> None:
    check_problem(client.get("/nothing"), 404, "not_found")
    check_problem(client.get(f"/v1/plans/sha256:{'0' * 64}"), 404, "not_found")
    check_problem(client.get("/v1/plans/"), 404, "not_found")
    answer = client.delete("/v1/plans")
    check_problem(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_only_json_is_taken(client: TestClient, content_type: str) -> None:
    answer = client.post("/v1/models", content=b"{}", headers={"content-type": content_type})
    check_problem(answer, 415, "unsupported_media_type")


def test_a_body_over_the_limit(client: TestClient) -> None:
    declared = client.post("/v1/plans", content=b" " * 100_001, headers=JSON)
    check_problem(declared, 413, "body_too_large")
    streamed = client.post("/v1/plans", content=(b" " * 1000 for _ in range(200)), headers=JSON)
    check_problem(streamed, 413, "body_too_large")
    just_fits = client.post("/v1/plans", content=b" " * 100_000, headers=JSON)
    check_problem(just_fits, 400, "invalid_json")


def test_other_host_names_are_refused(client: TestClient) -> None:
    answer = client.get("/healthz", headers={"host": "rebound.example:8000"})
    check_problem(answer, 421, "host_not_served")
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_a_defect_shows_nothing_of_the_inside(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    services = client.app.state.services

    def broken(_kind, _body):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(services.documents, "put", broken)
    answer = client.post("/v1/models", json=MODEL, headers={"x-request-id": "abc-1"})
    problem = check_problem(answer, 500, "internal_error")
    assert "secret" not in str(problem)
    assert answer.headers["x-request-id"] == "abc-1"


def _send(url: str, head: bytes, chunk: bytes, most: int) -> tuple[int, bytes]:
    """Send a head and then chunks until the server answers; returns bytes sent and the answer."""
    address, sent, waiting = urlsplit(url), 0, head
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        while sent < most:
            readable, writable, _ = select.select([connection], [connection], [], 30)
            if readable:
                break
            if writable:
                num_bytes = connection.send(waiting)
                sent += num_bytes
                waiting = waiting[num_bytes:] or chunk
        answer = b""
        while b"}" not in answer:
            received = connection.recv(65536)
            if not received:
                break
            answer += received
    return sent, answer


@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_200_megabytes_are_refused_without_being_read(start_server, sqlite_url: str, how: str) -> None:
    server = start_server(sqlite_url)
    size = 200 * 2**20
    head = b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if how == "declared":
        head, chunk = head + f"Content-Length: {size}\r\n\r\n".encode(), b" " * 65536
    else:
        head, chunk = head + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"
    before = _peak_memory_bytes(server.process.pid)
    sent, answer = _send(server.url, head, chunk, size)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer
    assert sent < (16 if how == "declared" else 100) * 2**20
    assert _peak_memory_bytes(server.process.pid) - before < 150 * 2**20
    assert server.http.get("/healthz").status_code == 200


def _peak_memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_compressed_bodies_are_refused_unread(client: TestClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = client.post("/v1/models", content=gzip.compress(b"{}"), headers=headers)
    check_problem(answer, 415, "unsupported_media_type")
