"""A service under test: one process on SQLite, or a server and two workers on PostgreSQL."""

import copy
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from sqlalchemy import func, select, text

from api.http.examples import REQUEST
from benchmarks.durability.processes import Postgres, Process, new_database, planners, wait_for
from profiles_db.engine import Database, is_outage
from profiles_db.tables import ExecutorRow, JobRow, PlanRow

HEARTBEATS = {"SHARDWRIGHT_HEARTBEAT_S": "0.5", "SHARDWRIGHT_HEARTBEAT_TIMEOUT_S": "3"}
SERVE = "from api.http import serve; serve(port=0)"
WORK = "from api.settings import Settings; from api.worker import run; run(Settings())"


def request(name: str) -> dict[str, Any]:
    """A request that takes the planner about a second, its own for each name."""
    value = copy.deepcopy(REQUEST)
    value["model"]["name"] = name
    return {**value, "search": {"gap": 0.05}}


class World:
    """Processes, and what their database holds."""

    def __init__(self, kind: str, url: str, postgres: Postgres | None, folder: Path) -> None:
        self.kind = kind
        self.postgres = postgres
        self.mark = f"durability-{uuid4().hex}"
        self.database = Database(url)
        self._http = httpx2.Client(timeout=700, limits=httpx2.Limits(max_connections=None))
        shared = {
            "SHARDWRIGHT_DATABASE_URL": url,
            "SHARDWRIGHT_LOG_FORMAT": "json",
            "SHARDWRIGHT_PLANNER_COMMAND": json.dumps([sys.executable, "-P", "-m", "planner", self.mark]),
            **HEARTBEATS,
        }

        def process(name: str, code: str, ready: str, **more: str) -> Process:
            return Process(name, code, ready, folder / f"{name}.log", {**shared, **more})

        if kind == "sqlite":
            self.server = process("server", SERVE, "listening", SHARDWRIGHT_MAX_CONCURRENT_SOLVES="2")
            self.workers = []
        else:
            self.server = process("server", SERVE, "listening", SHARDWRIGHT_EMBEDDED_WORKER="false")
            one = {"SHARDWRIGHT_MAX_CONCURRENT_SOLVES": "1"}
            self.workers = [process(f"worker-{number}", WORK, "working", **one) for number in (1, 2)]

    @property
    def processes(self) -> list[Process]:
        """All of ours."""
        return [self.server, *self.workers]

    @property
    def url(self) -> str:
        """Of the server, which has another one after each start."""
        return str(self.server.ready["url"])

    def ask(self, body: dict[str, Any], wait_s: float) -> httpx2.Response | None:
        """Ask for a plan; None when the server could not say yes."""
        try:
            answer = self._http.post(f"{self.url}/v1/plans", params={"wait": wait_s}, json=body)
        except httpx2.RequestError:
            return None
        return answer if answer.status_code in (200, 202) else None

    def post(self, name: str, wait_s: float) -> httpx2.Response | None:
        """Ask for the plan of a request of that name; None when the server could not say yes."""
        return self.ask(request(name), wait_s)

    def accepted(self, name: str) -> str:
        """Post until the server says yes; the identity of the job."""
        answer = wait_for(f"{name} to be accepted", lambda: self.post(name, 0))
        return answer.json()["job_id"] if answer.status_code == 202 else answer.json()["envelope"]["job_id"]

    def ended(self, job_id: str) -> JobRow:
        """The job when nothing will change any more."""
        return wait_for(f"{job_id} to end", lambda: self._ended(job_id))

    def _ended(self, job_id: str) -> JobRow | None:
        row = self.row(job_id)
        return row if row is not None and row.finished_at_us is not None else None

    def row(self, job_id: str) -> JobRow | None:
        """A job as the database has it; None while the database is away."""
        try:
            with self.database.read() as session:
                return session.get(JobRow, job_id)
        except Exception as error:
            if is_outage(error):
                return None
            raise

    def num_plans(self, request_hash: str) -> int:
        """Published plans of a request."""
        with self.database.read() as session:
            query = select(func.count()).select_from(PlanRow).where(PlanRow.request_hash == request_hash)
            return session.scalar(query) or 0

    def num_jobs(self, request_hash: str) -> int:
        """Jobs of a request."""
        with self.database.read() as session:
            query = select(func.count()).select_from(JobRow).where(JobRow.request_hash == request_hash)
            return session.scalar(query) or 0

    def num_published(self, job: JobRow) -> int:
        """How often a process said that it had published a result of a job."""
        entries = [entry for process in self.processes for entry in process.entries()]
        return sum(entry["event"] == "job_finished" and entry["job_id"] == job.job_id for entry in entries)

    def state(self, job_ids: Sequence[str]) -> str:
        """All that may say why jobs do not end."""
        with self.database.read() as session:
            jobs = [session.get(JobRow, job_id) for job_id in job_ids]
            told = [str({**vars(job), "_sa_instance_state": None}) for job in jobs if job is not None]
            told += [str(row) for row in session.execute(text("SELECT * FROM executors"))]
            if not self.database.is_sqlite:
                query = "SELECT workflow_uuid, status, executor_id, queue_name FROM dbos.workflow_status"
                told += [str(row) for row in session.execute(text(f"{query} WHERE status NOT IN ('SUCCESS')"))]
        for process in self.processes:
            told += [f"{process.name} {process.pid}", *(str(entry) for entry in process.entries()[-40:])]
        return "\n".join(told)

    def heartbeat(self, pid: int) -> int | None:
        """Last heartbeat of a process; None while the others hold it for dead."""
        query = select(ExecutorRow.heartbeat_at_us).where(ExecutorRow.name.endswith(f":{pid}"))
        with self.database.read() as session:
            return session.scalar(query)

    def planners(self) -> list[int]:
        """All planners of this world, those without a parent too."""
        return planners(self.mark)

    def end(self) -> None:
        """Stop everything."""
        self._http.close()
        self.database.close()
        for process in self.processes:
            process.end()


@contextmanager
def world_on(kind: str, folder: Path) -> Iterator[World]:
    """A service on `sqlite` or `postgresql` with its files in a folder."""
    with new_database(kind, folder) as (url, postgres):
        world = World(kind, url, postgres, folder)
        try:
            yield world
        finally:
            world.end()
