import pytest
from fastapi.testclient import TestClient

from api.dashboard.forms import MAX_BYTES, SAFE_METHODS
from api.dashboard.mount import ROUTERS
from api.dashboard.route import PageRoute
from tests.api.dashboard.conftest import HTML, form_token

JOB = "/jobs/default:sha256:0:0:1/cancel"


def _codes(answer) -> tuple[int, bool]:
    return answer.status_code, "foreign_form" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_forms_of_other_sites_are_refused_whatever_they_carry(open_client: TestClient, headers) -> None:
    token = form_token(open_client, "/")
    assert _codes(open_client.post(JOB, data={"csrf": token}, headers={**HTML, **headers})) == (403, True)


@pytest.mark.parametrize("token", ["", "0" * 64, "f" * 64, "\u00e4"])
def test_a_form_without_the_token_of_its_session_is_refused(open_client: TestClient, token: str) -> None:
    open_client.get("/")
    assert _codes(open_client.post(JOB, data={"csrf": token}, headers=HTML)) == (403, True)


def test_the_token_of_another_session_is_of_no_use(open_client: TestClient) -> None:
    theirs = form_token(open_client, "/")
    open_client.cookies.clear()
    assert form_token(open_client, "/") != theirs
    assert _codes(open_client.post(JOB, data={"csrf": theirs}, headers=HTML)) == (403, True)


def test_own_forms_pass_in_the_body_and_in_the_header(open_client: TestClient) -> None:
    token = form_token(open_client, "/")
    own = {**HTML, "origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert open_client.post(JOB, data={"csrf": token}, headers=own).status_code == 404
    assert open_client.post(JOB, headers={**own, "x-csrf-token": token}).status_code == 404


def test_every_form_that_changes_something_is_checked(open_client: TestClient) -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    paths = {route.path for route in routes if "POST" in route.methods}
    assert all(isinstance(route, PageRoute) for route in routes if route.methods - SAFE_METHODS)
    assert "/login" in paths
    assert len(paths) > 6
    for path in paths:
        concrete = path.replace("{regeneration_id}", f"reg_{'0' * 24}").replace("{number}", "1")
        concrete = concrete.replace("{decision}", "accept").replace("{name}", "c").replace("{lineage}", "l")
        answer = open_client.post(concrete.replace("{job_id}", "j"), headers=HTML)
        assert _codes(answer) == (403, True), path


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        (b"\xff=1", "application/x-www-form-urlencoded", 422),
        (b"&".join(b"a%d=1" % number for number in range(600)), "application/x-www-form-urlencoded", 422),
        (b"{}", "application/json", 415),
        (b"a=%ff", "application/x-www-form-urlencoded", 422),
        (b"a=" + b"%41" * MAX_BYTES, "application/x-www-form-urlencoded", 413),
    ],
)
def test_bodies_that_are_no_forms_are_refused(open_client: TestClient, body, media_type, status) -> None:
    headers = {**HTML, "content-type": media_type, "x-csrf-token": form_token(open_client, "/")}
    answer = open_client.post("/clusters/c/preview", content=body, headers=headers)
    assert answer.status_code == status
    assert "text/html" in answer.headers["content-type"]


def test_a_large_form_of_a_stranger_is_refused(open_client: TestClient) -> None:
    """It was unquoted in the event loop: 60 MB stopped the server for 14 seconds."""
    headers = {**HTML, "content-type": "application/x-www-form-urlencoded"}
    answer = open_client.post("/login", content=b"credential=" + b"%41" * MAX_BYTES, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-security-policy"]
