import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from api.jobs import APPLICATION_VERSION
from api.service.errors import NeedsPostgresql
from api.settings import Settings
from api.worker import run
from planner import __version__
from profiles_db.engine import Database
from profiles_db.tables import ExecutorRow, PlanRow
from tests.api.http.gated import Gated, gate
from tests.api.http.server import REQUEST, Worker, is_gone, running_client, wait_until

ONLY_ANSWERS = {"SHARDWRIGHT_EMBEDDED_WORKER": "false"}


@pytest.fixture
def gated(start_server, postgresql_url: str, tmp_path: Path) -> Gated:
    return Gated(start_server, postgresql_url, tmp_path / "gate", **ONLY_ANSWERS)


@pytest.fixture
def workers(start_worker, postgresql_url: str, tmp_path: Path) -> list[Worker]:
    return [start_worker(postgresql_url, **gate(tmp_path / "gate")) for _ in range(2)]


def test_a_worker_runs_what_a_server_was_asked_for(gated: Gated, start_worker, postgresql_url: str) -> None:
    link = gated.post("model")
    assert gated.get(link)["state"] == "queued"
    worker = start_worker(postgresql_url, **gate(gated.folder))
    gated.open()
    assert gated.ask("model", wait=60).status_code == 200
    assert gated.server.child_pids() == []
    worker.end()
    assert worker.process.returncode == 0
    finished = next(entry for entry in worker.log if entry["event"] == "job_finished")
    assert finished["job_id"] == gated.get(link)["job_id"]


def test_the_work_of_a_killed_worker_is_taken_over(gated: Gated, workers: list[Worker]) -> None:
    link = gated.post("model")
    wait_until(lambda: gated.started() == ["model"])
    dead, other = workers if workers[0].child_pids() else reversed(workers)
    (planner,) = dead.child_pids()
    dead.end(signal.SIGKILL)
    wait_until(lambda: is_gone(planner))
    wait_until(other.child_pids)
    gated.open()
    assert gated.ask("model", wait=60).status_code == 200
    assert gated.get(link)["state"] == "succeeded"
    assert gated.started() == ["model", "model"]


def test_a_worker_that_stops_hands_its_work_over_at_once(gated: Gated, workers: list[Worker]) -> None:
    gated.post("model")
    wait_until(lambda: gated.started() == ["model"])
    ended, other = workers if workers[0].child_pids() else reversed(workers)
    ended.end()
    assert ended.process.returncode == 0
    wait_until(other.child_pids)
    gated.open()
    assert gated.ask("model", wait=60).status_code == 200


def test_a_paused_worker_that_returns_cannot_overwrite(
    gated: Gated, workers: list[Worker], postgresql_url: str
) -> None:
    link = gated.post("model")
    wait_until(lambda: gated.started() == ["model"])
    paused, other = workers if workers[0].child_pids() else reversed(workers)
    (planner,) = paused.child_pids()
    paused.pause()
    wait_until(other.child_pids)
    gated.open()
    published = gated.ask("model", wait=60)
    assert published.status_code == 200
    ended = gated.get(link)
    paused.resume()
    wait_until(lambda: is_gone(planner))
    assert gated.ask("next", wait=60).status_code == 200
    assert gated.get(link) == ended
    assert gated.ask("model").content == published.content
    paused.end()
    assert "job_finished" not in [entry["event"] for entry in paused.log if entry.get("job_id") == ended["job_id"]]
    database = Database(postgresql_url)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(PlanRow)) == 2
    database.close()


def test_a_worker_that_stands_still_amid_a_transaction_holds_nobody_up(
    gated: Gated, workers: list[Worker], postgresql_url: str
) -> None:
    link = gated.post("model")
    wait_until(lambda: gated.started() == ["model"])
    paused, _ = workers if workers[0].child_pids() else reversed(workers)
    database = Database(postgresql_url)
    with database.write() as session:
        session.execute(text("SELECT 1 FROM jobs FOR UPDATE"))
        backend = session.scalar(text("SELECT pg_backend_pid()"))
        gated.open()
        wait_until(lambda: _num_waiting_for(database, backend))
        paused.pause()
    assert gated.ask("model", wait=60).status_code == 200
    assert gated.started() == ["model", "model"]
    ended = gated.get(link)
    paused.resume()
    assert gated.ask("next", wait=60).status_code == 200
    assert gated.get(link) == ended
    database.close()


def _num_waiting_for(database: Database, backend: int) -> int:
    """In a transaction of its own: PostgreSQL shows each the connections that were there when it first looked."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE :backend = ANY(pg_blocking_pids(pid))")
    with database.read() as session:
        return session.scalar(waiting, {"backend": backend})


def test_executors_say_what_they_are(gated: Gated, workers: list[Worker], postgresql_url: str) -> None:
    database = Database(postgresql_url)
    with database.read() as session:
        rows = session.scalars(select(ExecutorRow)).all()
    database.close()
    assert len({row.executor_id for row in rows}) == 3
    assert sorted(row.num_slots for row in rows) == [0, 1, 1]
    assert {row.application_version for row in rows} == {APPLICATION_VERSION}
    pids = {process.process.pid for process in (gated.server, *workers)}
    assert {int(row.name.rpartition(":")[2]) for row in rows} == pids


def test_sqlite_serves_one_process(sqlite_url: str) -> None:
    with pytest.raises(NeedsPostgresql, match="PostgreSQL"):
        run(Settings(database_url=sqlite_url))
    with pytest.raises(NeedsPostgresql, match="embedded_worker"), running_client(sqlite_url, embedded_worker=False):
        pass


def test_an_upgrade_plans_again_what_the_old_planner_had_accepted(
    start_server, database_url: str, tmp_path: Path
) -> None:
    one = Gated(start_server, database_url, tmp_path / "gate")
    link = one.post("model")
    wait_until(lambda: one.started() == ["model"])
    one.server.end(signal.SIGKILL)
    _belongs_to_version(database_url, "0.0.1")
    link = link.replace(__version__, "0.0.1")
    two = Gated(start_server, database_url, tmp_path / "gate")
    wait_until(lambda: two.get(link)["state"] == "failed")
    assert two.get(link)["problem"]["code"] == "planner_replaced"
    two.open()
    plan = two.ask("model", wait=60)
    assert plan.status_code == 200
    assert plan.json()["envelope"]["job_id"] != two.get(link)["job_id"]


def test_what_a_worker_took_and_never_ran_goes_back_to_the_queue(
    start_server, database_url: str, tmp_path: Path
) -> None:
    """As DBOS leaves it when the database goes away while it hands a job out."""
    one = Gated(start_server, database_url, tmp_path / "gate")
    one.post("first")
    wait_until(lambda: one.started() == ["first"])
    link = one.post("second")
    job_id = one.get(link)["job_id"]
    ours, queue, table = _databases(database_url)
    with ours.read() as session:
        executor_id = session.scalar(select(ExecutorRow.executor_id))
    with queue.write() as session:
        query = f"UPDATE {table} SET status = 'PENDING', executor_id = :executor WHERE workflow_uuid = :job"
        session.execute(text(query), {"executor": executor_id, "job": job_id})
    ours.close()
    queue.close()
    one.open()
    assert one.ask("second", wait=60).status_code == 200
    assert one.started() == ["first", "second"]


def _databases(database_url: str) -> tuple[Database, Database, str]:
    """Ours, that of the queue, and the queue's table in it."""
    ours = Database(database_url)
    if ours.is_sqlite:
        return ours, Database(f"{database_url}.queue"), "workflow_status"
    return ours, Database(database_url), "dbos.workflow_status"


def _belongs_to_version(database_url: str, version: str) -> None:
    """As if the database were left by an older planner."""
    ours, theirs, table = _databases(database_url)
    values = {"own": f":{__version__}:", "new": f":{version}:", "application": f"3-{version}"}
    job_id = "replace({}, :own, :new)"
    with ours.write() as session:
        session.execute(text("DELETE FROM job_events"))
        session.execute(
            text(f"UPDATE jobs SET planner_version = :version, job_id = {job_id.format('job_id')}"),
            values | {"version": version},
        )
        session.execute(text("UPDATE executors SET application_version = :application"), values)
    with theirs.write() as session:
        new_id = job_id.format("workflow_uuid")
        session.execute(
            text(f"UPDATE {table} SET application_version = :application, workflow_uuid = {new_id}"), values
        )
    ours.close()
    theirs.close()


def test_plans_of_another_planner_version_are_made_again(sqlite_url: str) -> None:
    with running_client(sqlite_url) as client:
        first = client.post("/v1/plans", json=REQUEST).json()
        database = Database(sqlite_url)
        with database.write() as session:
            for table in ("job_events", "provisional_plans"):
                session.execute(text(f"DELETE FROM {table}"))
            session.execute(text("UPDATE jobs SET planner_version = '0.0.1', job_id = 'old'"))
        database.close()
        client.post("/v1/plans", json=REQUEST)
        assert "shardwright_planner_starts_total 2.0" in client.get("/metrics").text
        assert client.get(f"/v1/jobs/{first['envelope']['job_id']}").json()["state"] == "succeeded"
