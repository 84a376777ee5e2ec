"""Tokens of an identity provider: a real one in a thread, with real signatures."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from fastapi.testclient import TestClient
from pydantic import ValidationError

from api.http.problems import error_response
from api.service.errors import IdentityProviderUnavailable
from api.service.oidc import OidcVerifier
from api.settings import Settings
from tests.api.http.server import bearer, running_client
from tests.api.http.test_problems import check_problem

ISSUER, AUDIENCE = "https://login.example.org", "shardwright"


class Provider:
    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.num_fetches = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.num_fetches += 1
                jwk = jwt.algorithms.ECAlgorithm.to_jwk(provider.private.public_key(), as_dict=True)
                body = json.dumps({"keys": [{**jwk, "kid": "1", "use": "sig", "alg": "ES256"}]}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(
        self, *, key: Any = None, algorithm: str = "ES256", headers: dict | None = None, **claims: Any
    ) -> str:
        whole = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "launcher-7",
            "exp": int(time.time()) + 600,
            "tenant": "team-a",
            "scope": "openid plan",
            **claims,
        }
        whole = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(whole, key or self.private, algorithm=algorithm, headers={"kid": "1", **(headers or {})})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture(scope="module")
def client(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    url = f"sqlite:///{tmp_path_factory.mktemp('oidc') / 'test.db'}"
    settings = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks_url": f"{provider.url}/keys"}
    with running_client(url, **settings) as client:
        yield client


def test_claims_become_tenant_and_scopes(client: TestClient, provider: Provider) -> None:
    answer = client.get("/v1/whoami", headers=bearer(provider.token()))
    assert answer.json() == {"tenant": "team-a", "name": "launcher-7", "scopes": ["read", "plan"]}
    listed = client.get("/v1/whoami", headers=bearer(provider.token(scope=["admin", "else"])))
    assert listed.json()["scopes"] == ["read", "plan", "admin"]


def test_no_token_no_entry(client: TestClient) -> None:
    check_problem(client.get("/v1/whoami"), 401, "unauthenticated")


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://evil.example.org"},
        {"aud": "another service"},
        {"aud": None},
        {"exp": int(time.time()) - 3600},
        {"exp": None},
        {"sub": None},
        {"nbf": int(time.time()) + 3600},
        {"key": ec.generate_private_key(ec.SECP256R1())},
        {"key": "0123456789abcdef0123456789abcdef", "algorithm": "HS256"},
        {"key": ed25519.Ed25519PrivateKey.generate(), "algorithm": "EdDSA"},
    ],
    ids=["issuer", "audience", "no audience", "expired", "no end", "no subject", "early", "key", "HS256", "EdDSA"],
)
def test_tokens_that_prove_nothing(client: TestClient, provider: Provider, change: dict) -> None:
    check_problem(client.get("/v1/whoami", headers=bearer(provider.token(**change))), 401, "unauthenticated")


def test_an_unsigned_token(client: TestClient) -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": int(time.time()) + 600, "tenant": "team-a"}
    token = jwt.encode(claims, None, algorithm="none", headers={"kid": "1"})
    check_problem(client.get("/v1/whoami", headers=bearer(token)), 401, "unauthenticated")


def test_urls_inside_a_token_are_never_opened(client: TestClient, provider: Provider) -> None:
    client.get("/v1/whoami", headers=bearer(provider.token()))
    before = provider.num_fetches
    for header in ("jku", "x5u"):
        token = provider.token(headers={header: f"{provider.url}/evil", "kid": "2"})
        check_problem(client.get("/v1/whoami", headers=bearer(token)), 401, "unauthenticated")
    assert provider.num_fetches == before


@pytest.mark.parametrize("tenant", [None, "", "Team A", "a" * 64, 7.5, ["team-a"]])
def test_a_token_without_a_tenant(client: TestClient, provider: Provider, tenant: object) -> None:
    answer = client.get("/v1/whoami", headers=bearer(provider.token(tenant=tenant)))
    assert "tenant" in check_problem(answer, 403, "forbidden")["detail"]


def test_a_token_without_a_scope_may_do_nothing(client: TestClient, provider: Provider) -> None:
    for scope in ("openid", None, 3, ["PLAN"]):
        check_problem(client.get("/v1/plans", headers=bearer(provider.token(scope=scope))), 403, "forbidden")


def test_a_provider_that_does_not_answer(client: TestClient, provider: Provider) -> None:
    settings = Settings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks_url="http://127.0.0.1:9/keys")
    with pytest.raises(IdentityProviderUnavailable) as caught:
        OidcVerifier(settings).verify(provider.token())
    assert error_response(caught.value).status_code == 503


def test_half_a_provider_is_refused() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        Settings(oidc_issuer=ISSUER)
