"""Secrets of the operator and of callers stand in no log, error or answer."""

from pathlib import Path

from api.http.examples import CLUSTER, REQUEST
from api.service.signing import Signer
from tests.api.http.server import Server, bearer, decoder_request

WEBHOOK_SECRET = "webhook-secret-4711"


def test_logs_and_answers_hold_no_secrets(tmp_path: Path) -> None:
    Signer.create(tmp_path / "key.pem")
    server = Server(
        f"sqlite:///{tmp_path / 'test.db'}",
        {
            "SHARDWRIGHT_SIGNING_KEY_FILE": str(tmp_path / "key.pem"),
            "SHARDWRIGHT_WEBHOOK_URL": "http://127.0.0.1:9/user:hook-password",
            "SHARDWRIGHT_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "SHARDWRIGHT_REGENERATION_POLL_S": "0.05",
            "SHARDWRIGHT_LOG_LEVEL": "DEBUG",
        },
    )
    token = server.http.post("/v1/keys", json={"name": "a", "scopes": ["admin"]}).json()["token"]
    secret = token.split("_", 2)[2]
    rotated = server.http.post(f"/v1/keys/{token.split('_')[1]}/rotate", json={}, headers=bearer(token)).json()[
        "token"
    ]
    headers = bearer(rotated)
    answers = [
        server.http.get("/v1/keys", headers=headers),
        server.http.get("/v1/keys", headers=bearer(token)),
        server.http.get("/v1/keys", headers={"Authorization": f"Basic {secret}"}),
        server.http.post("/v1/plans", json={**REQUEST, "api_key": rotated}, headers=headers),
        server.http.post("/v1/plans", json=decoder_request(2), headers=headers),
        server.http.post("/v1/clusters", json=CLUSTER, headers=headers),
        server.http.post(
            f"/v1/clusters/{CLUSTER['name']}/revisions",
            json={"changes": [{"change": "nodes_added", "num_nodes": 1}], "scope": "lineages"},
            headers=headers,
        ),
        server.http.get("/metrics", headers=headers),
        server.http.get("/readyz"),
    ]
    link = answers[6].json()["links"]["self"]
    while server.http.get(link, headers=headers).json()["state"] == "running":
        pass
    server.end()
    assert [entry for entry in server.log if entry["event"] == "regeneration_done"]
    private = "".join((tmp_path / "key.pem").read_text().splitlines()[1:-1])
    told = [str(entry) for entry in server.log] + [answer.text for answer in answers if answer is not answers[3]]
    for hidden in (secret, rotated.split("_", 2)[2], WEBHOOK_SECRET, "hook-password", private):
        assert not [text[:300] for text in told if hidden in text]
