import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.__main__ import main
from api.service.signing import InvalidSigningKey, Signer
from planner.schema import Plan, PlanRequest
from runtime_client.client import PlanClient, load_plan
from runtime_client.errors import ClientError, NoPlanAvailable, UntrustedPlan
from runtime_client.signatures import TrustedKeys
from tests.api.http.server import REQUEST, Server, running_client


def test_plans_are_signed_and_clients_notice_what_was_changed(tmp_path: Path, sqlite_url: str) -> None:
    signer = Signer.create(tmp_path / "key.pem")
    with running_client(sqlite_url, signing_key_file=tmp_path / "key.pem") as client:
        answers = [client.post("/v1/plans", json=REQUEST)]
        plan_id = answers[0].json()["envelope"]["plan_id"]
        client.post("/v1/lineages", json={"name": "job", "plan": plan_id})
        answers += [client.get(f"/v1/plans/{plan_id}"), client.get("/v1/lineages/job/active")]
    assert answers[0].content == answers[1].content
    assert answers[0].headers["ETag"] == f'"{plan_id}.{signer.key_id}"'
    trusted = TrustedKeys([signer.public_key])
    for answer in answers:
        trusted.check(Plan.from_json(answer.content))
    in_lineage = json.loads(answers[2].content)
    changes: list[dict[str, Any]] = [
        {"revision": 2},
        {"lineage": "other"},
        {"signature": None},
        {"signature": in_lineage["envelope"]["signature"][:-8] + "AAAAAAA="},
        {"signature": "ed25519::"},
        {"signature": f"ed25519:{signer.key_id}:\u00e9"},
        {"signature": f"rsa:{signer.key_id}:AAAA"},
    ]
    for change in changes:
        forged = {**in_lineage, "envelope": {**in_lineage["envelope"], **change}}
        with pytest.raises(UntrustedPlan):
            trusted.check(Plan.from_object(forged))
    renamed = {**in_lineage, "body": {**in_lineage["body"], "name": "x"}}
    with pytest.raises(UntrustedPlan, match="not one of its content"):
        trusted.check(Plan.from_object(renamed))
    with pytest.raises(UntrustedPlan, match="none of the trusted ones"):
        TrustedKeys([Signer.create(tmp_path / "other.pem").public_key]).check(Plan.from_object(in_lineage))
    file = tmp_path / "plan.json"
    file.write_bytes(answers[2].content)
    assert load_plan(file, trusted_keys=[signer.public_key]).envelope.revision == 1
    file.write_text(json.dumps(in_lineage["body"]))
    with pytest.raises(UntrustedPlan, match="not signed"):
        load_plan(file, trusted_keys=[signer.public_key])


def test_a_client_goes_on_with_what_it_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One service signs, another one that took its address does not."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    key = Signer.create(tmp_path / "key.pem").public_key
    honest = Server(f"sqlite:///{tmp_path / 'a.db'}", {"SHARDWRIGHT_SIGNING_KEY_FILE": str(tmp_path / "key.pem")})
    request = PlanRequest.from_object(REQUEST)
    cache = tmp_path / "cache"
    first = PlanClient(honest.url, cache_dir=cache, trusted_keys=[key], deadline_s=300).plan(request)
    assert not first.stale
    honest.end()
    other = Server(f"sqlite:///{tmp_path / 'b.db'}", {})
    asking = PlanClient(other.url, cache_dir=cache, trusted_keys=[key], deadline_s=300)
    last = asking.plan(request)
    assert (last.stale, last.plan) == (True, first.plan)
    assert "not signed" in last.reason
    for file in cache.iterdir():
        file.write_text(file.read_text().replace('"signature": "ed25519:', '"signature": "ed25519:0'))
    with pytest.raises(NoPlanAvailable):
        asking.plan(request)
    other.end()


def test_keys_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key.pem"
    assert main(["keys", "new-signing-key", str(file)]) == 0
    assert capsys.readouterr().out.strip() == Signer.of(file).public_key
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["keys", "new-signing-key", str(file)]) == 2
    file.chmod(0o644)
    with pytest.raises(InvalidSigningKey, match="chmod 600"):
        Signer.of(file)
    for text in ("", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        broken = tmp_path / "broken.pem"
        broken.write_text(text)
        broken.chmod(0o600)
        with pytest.raises(InvalidSigningKey, match="no private Ed25519 key"):
            Signer.of(broken)
    with pytest.raises(InvalidSigningKey, match="No such file"):
        Signer.of(tmp_path / "missing.pem")
    for key in ("", "ed25519:", "ed25519:AAAA", "rsa:AAAA", "ed25519:\u00e9"):
        with pytest.raises(ClientError, match="no public key"):
            TrustedKeys([key])
