import pytest
from fastapi.testclient import TestClient

from api.cli.__main__ import main
from api.http.examples import CLUSTER, MODEL
from profiles_db import retention
from profiles_db.engine import Database
from profiles_db.tables import now_us
from tests.api.http.server import REQUEST, running_client

SIZES = [60 * 2**30 + number for number in range(5)]


def _plan(client: TestClient, size: int) -> str:
    request = {**REQUEST, "limits": {"memory_bytes": size}}
    return client.post("/v1/plans", json=request).json()["envelope"]["plan_id"]


def test_old_revisions_go_and_what_is_pointed_at_stays(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_client(database_url, regeneration_poll_s=0.02) as client:
        loose = _plan(client, 59 * 2**30)
        spare = client.post("/v1/models", json={**MODEL, "name": "never planned"}).json()["links"]["self"]
        plans = [_plan(client, size) for size in SIZES]
        for plan_id in plans:
            client.post("/v1/lineages", json={"name": "job", "plan": plan_id})
        database = Database(database_url)
        with database.write() as session:
            nothing = retention.prune(session, keep=2, before_us=now_us() - 60_000_000)
        assert set(vars_of(nothing).values()) == {0}
        at = ("--database-url", database_url)
        assert main(["db", "prune", "--days", "1", "--dry-run", *at]) == 0
        assert "would delete: 0 regenerations" in capsys.readouterr().err
        with database.write() as session:
            done = retention.prune(session, keep=2, before_us=now_us())
        database.close()
        assert (done.revisions, done.plans, done.documents) == (2, 3, 1)
        rows = client.get("/v1/lineages/job/revisions").json()["items"]
        assert [row["revision"] for row in rows] == [5, 4, 1]
        assert client.get("/v1/lineages/job/active").json()["envelope"]["plan_id"] == plans[0]
        assert client.get(f"/v1/plans/{plans[1]}").status_code == 404
        assert client.get(spare).status_code == 404
        assert client.get("/v1/clusters").json()["items"][0]["name"] == CLUSTER["name"]
        assert _plan(client, 59 * 2**30) == loose
        assert client.get(f"/v1/plans/{loose}").status_code == 200


def vars_of(pruned: retention.Pruned) -> dict[str, int]:
    return {name: getattr(pruned, name) for name in pruned.__dataclass_fields__}
