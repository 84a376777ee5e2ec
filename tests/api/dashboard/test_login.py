import time
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from api.dashboard.pages.login import local_path
from api.service.callers import Scope
from profiles_db import sessions
from profiles_db.engine import Database
from profiles_db.tables import SessionRow
from tests.api.dashboard.conftest import HTML, form_token, log_in
from tests.api.http.server import REQUEST, bearer, running_client
from tests.api.http.test_oidc import AUDIENCE, ISSUER, Provider

COOKIE = "shardwright_session"


def test_before_the_first_key_pages_are_open_as_the_api_is(open_client: TestClient) -> None:
    assert open_client.get("/v1/whoami").status_code == 200
    answer = open_client.get("/", headers=HTML)
    assert answer.status_code == 200
    assert "Sign out" not in answer.text
    login = open_client.get("/login", headers=HTML, follow_redirects=False)
    assert (login.status_code, login.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", ["/", "/plans", "/lineages", "/clusters", "/regenerations", "/jobs"])
def test_with_keys_every_page_asks_for_one_and_leads_back(client: TestClient, make_key, path: str) -> None:
    make_key()
    answer = client.get(f"{path}?x=1", headers=HTML, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/login?next={path.replace('/', '/')}%3Fx%3D1"


def test_names_in_an_address_come_through_the_login_as_they_were(client: TestClient, make_key) -> None:
    key, path = make_key(), "/clusters/a%2Fb%3Fc%23d%2525"
    answer = client.get(f"{path}?cursor=%2F", headers=HTML, follow_redirects=False)
    wanted = parse_qs(urlsplit(answer.headers["location"]).query)["next"][0]
    assert wanted == f"{path}?cursor=%2F"
    assert log_in(client, key, next=wanted).headers["location"] == wanted


def test_an_address_too_long_to_come_back_to_still_gets_the_form(client: TestClient, make_key) -> None:
    key = make_key()
    answer = client.get(f"/plans?unknown={'a' * 3000}", headers=HTML)
    assert answer.status_code == 200
    assert 'name="next" value="/"' in answer.text
    assert log_in(client, key, next="/" + "a" * 3000).headers["location"] == "/"


def test_a_key_begins_a_session_that_signing_out_ends(client: TestClient, make_key) -> None:
    key = make_key()
    before = client.cookies.get(COOKIE)
    answer = log_in(client, key, next="/plans?sort=gap")
    assert (answer.status_code, answer.headers["location"]) == (303, "/plans?sort=gap")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    session = client.cookies[COOKIE]
    assert session != before
    assert key not in client.get("/plans").text
    assert "of team-a" in client.get("/plans").text
    out = client.post("/logout", data={"csrf": form_token(client, "/plans")}, follow_redirects=False)
    assert out.headers["location"] == "/login?notice=logged-out"
    client.cookies.set(COOKIE, session)
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 303


def test_who_signs_in_again_leaves_no_session_behind(client: TestClient, make_key) -> None:
    log_in(client, make_key())
    first = client.cookies[COOKIE]
    assert log_in(client, "swk_0_0").status_code == 401
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 200
    log_in(client, make_key("team-b"))
    assert "of team-b" in client.get("/plans", headers=HTML).text
    client.cookies.clear()
    client.cookies.set(COOKIE, first)
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 303


def test_a_wrong_key_gets_the_form_again(client: TestClient, make_key) -> None:
    key = make_key()
    for wrong in (key[:-1], "", "swk_0_0", "eyJ.a.b"):
        answer = log_in(client, wrong)
        assert answer.status_code == 401
        assert "unknown, expired or revoked" in answer.text
        assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("how", ["revoke", "rotate"])
def test_a_session_ends_with_its_key(client: TestClient, make_key, how: str) -> None:
    key = make_key()
    log_in(client, key)
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 200
    key_id = key.split("_")[1]
    if how == "revoke":
        assert client.delete(f"/v1/keys/{key_id}", headers=bearer(key)).status_code == 204
    else:
        assert client.post(f"/v1/keys/{key_id}/rotate", json={}, headers=bearer(key)).status_code == 200
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 303


def test_sessions_end_by_themselves_and_are_kept_as_digests(
    client: TestClient, make_key, database_url: str
) -> None:
    log_in(client, make_key())
    database = Database(database_url)
    with database.write() as session:
        row = session.query(SessionRow).one()
        assert client.cookies[COOKIE] not in (row.token_sha256, row.secret_sha256)
        row.expires_at_us = 1
    assert client.get("/plans", headers=HTML, follow_redirects=False).status_code == 303
    with database.write() as session:
        sessions.add(session, "0" * 64, expires_at_us=2**62)
    with database.read() as session:
        assert [row.token_sha256 for row in session.query(SessionRow)] == ["0" * 64]
    database.close()


def test_over_https_the_cookie_is_secure_and_bound_to_the_host(sqlite_url: str) -> None:
    with running_client(sqlite_url) as client:
        client.base_url = "https://localhost"
        cookie = client.get("/", headers=HTML).headers["set-cookie"]
    assert cookie.startswith("__Host-shardwright_session=")
    assert "; Secure" in cookie


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a\nb"]
)
def test_login_leads_to_no_other_host(wanted: str) -> None:
    assert local_path(wanted) == "/"


def test_what_one_tenant_knows_is_not_there_for_the_other(client: TestClient, make_key) -> None:
    key_a, key_b = make_key("team-a"), make_key("team-b")
    plan = client.post("/v1/plans?wait=300", json=REQUEST, headers=bearer(key_a)).json()
    job_id, name = plan["envelope"]["job_id"], plan["body"]["name"]
    log_in(client, key_a)
    assert name in client.get("/plans").text
    assert client.get(f"/jobs/{job_id}", headers=HTML).status_code == 200
    client.cookies.clear()
    log_in(client, key_b)
    for path in ("/", "/plans", "/jobs", "/clusters"):
        assert name not in client.get(path).text
        assert REQUEST["cluster"]["name"] not in client.get(path).text
    for path in (f"/jobs/{job_id}", f"/clusters/{REQUEST['cluster']['name']}"):
        assert client.get(path, headers=HTML).status_code == 404


def test_a_key_that_may_only_read_changes_nothing(client: TestClient, make_key) -> None:
    admin, reader = make_key(), make_key(scope=Scope.READ)
    plan = client.post("/v1/plans?wait=300", json=REQUEST, headers=bearer(admin)).json()
    log_in(client, reader)
    job = f"/jobs/{plan['envelope']['job_id']}"
    token = form_token(client, job)
    for path in (f"{job}/cancel", f"{job}/retry", f"/clusters/{REQUEST['cluster']['name']}/changes"):
        answer = client.post(path, data={"csrf": token}, headers=HTML)
        assert answer.status_code == 403
        assert "scope" in answer.text
    assert "Cancel" not in client.get("/jobs").text


def test_a_proxy_may_show_a_token_for_everyone(client: TestClient, make_key) -> None:
    key = make_key()
    assert client.get("/plans", headers={**HTML, **bearer(key)}).status_code == 200


def test_a_token_of_the_identity_provider_begins_a_session_that_ends_with_it(
    provider: Provider, sqlite_url: str
) -> None:
    oidc = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks_url": f"{provider.url}/keys"}
    with running_client(sqlite_url, **oidc) as client:
        assert log_in(client, provider.token(tenant=None)).status_code == 403
        answer = log_in(client, provider.token(exp=int(time.time()) + 100))
        assert answer.status_code == 303
        assert 0 < int(answer.headers["set-cookie"].lower().split("max-age=")[1].split(";")[0]) <= 100
        text = client.get("/plans").text
        assert "launcher-7" in text
        assert "team-a" in text
