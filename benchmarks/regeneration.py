"""A cluster changes under many plans: all are made again once, whatever is killed, and launchers stay fast.

    python -m benchmarks.regeneration --plans 1000 --workers 2 --kills 10

For each number of workers and of kills: a server and so many workers on a PostgreSQL of their own, so many lineages
with a plan each, one change of their cluster. Meanwhile launchers ask for a known plan all the time, and for a new
one every few seconds. Prints a line for each and writes `docs/measurements/regeneration/kills.json`; exits with 1
when a plan is missing, made twice, or left a process.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
from sqlalchemy import func, select

from api.http.examples import REQUEST
from benchmarks.durability.processes import Postgres, Process, planners, wait_for
from benchmarks.durability.world import HEARTBEATS, SERVE, WORK
from benchmarks.durability.world import request as searched
from benchmarks.record import latency, provenance
from planner.plan import input_hashes, make_plan
from planner.schema import Plan, PlanRequest
from profiles_db import lineages, migrations, plans, requests
from profiles_db.engine import Database
from profiles_db.tables import Cause, JobPriority, JobRow, RevisionRow

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "regeneration" / "kills.json"
SLOWER = {"changes": [{"change": "link_degraded", "link": "inter_node", "share": 0.5}], "why": "a benchmark"}
LONGEST_S = 4 * 3600.0
NEW_EVERY_S = 4.0


@dataclass
class Measured:
    """What one run found."""

    seconds: float = 0.0
    known_s: list[float] = field(default_factory=list)
    """Answers to requests whose plan was known."""
    new_s: list[float] = field(default_factory=list)
    """Answers to requests of launchers that needed a search."""
    verdicts: dict[str, int] = field(default_factory=dict)
    num_jobs: int = 0
    wrong: list[str] = field(default_factory=list)


def request(name: str) -> dict[str, Any]:
    """A request of few choices, its own for each name."""
    return {**searched(name), "client_features": []}


def fill(database: Database, count: int) -> None:
    """Lineages with one plan each: that of the planner for the first, under other names for the others."""
    migrations.upgrade(database)
    planned = make_plan(PlanRequest.from_object(request("plan-0"))).body
    for number in range(count):
        asked = PlanRequest.from_object(request(f"plan-{number}"))
        body = planned.model_copy(update={"name": asked.model.name, "inputs": input_hashes(asked)})
        with database.write() as session:
            requests.put(session, "default", asked, asked.content_hash())
            plan = Plan.of(body)
            plans.put(session, "default", plan)
            lineage = lineages.open_lineage(
                session,
                "default",
                f"lin:{number:024x}",
                name=f"job-{number}",
                model_fingerprint=body.model_fingerprint,
                training_hash=body.inputs.workload,
            )
            plan_id = plan.envelope.plan_id
            lineages.add_revision(session, lineage, plan_id, cause=Cause.REQUESTED, changed=[], why="", by="test")
            lineages.activate(session, lineage, 1, why="", by="test")


class Service:
    """A server that does not search, and workers."""

    def __init__(self, url: str, num_workers: int, folder: Path) -> None:
        self.mark = f"regeneration-{uuid4().hex}"
        self._http = httpx2.Client(timeout=120)
        shared = {
            "SHARDWRIGHT_DATABASE_URL": url,
            "SHARDWRIGHT_LOG_FORMAT": "json",
            "SHARDWRIGHT_PLANNER_COMMAND": json.dumps([sys.executable, "-P", "-m", "planner", self.mark]),
            "SHARDWRIGHT_EMBEDDED_WORKER": "false",
            "SHARDWRIGHT_MAX_CONCURRENT_SOLVES": "1",
            "SHARDWRIGHT_REGENERATION_POLL_S": "0.2",
            **HEARTBEATS,
        }
        self.server = Process("server", SERVE, "listening", folder / "server.log", shared)
        shared["SHARDWRIGHT_EMBEDDED_WORKER"] = "true"
        self.workers = [
            Process(f"worker-{number}", WORK, "working", folder / f"worker-{number}.log", shared)
            for number in range(num_workers)
        ]

    @property
    def url(self) -> str:
        """Of the server, which has another one after each start."""
        return str(self.server.ready["url"])

    @property
    def processes(self) -> list[Process]:
        """All of ours."""
        return [self.server, *self.workers]

    def end(self) -> None:
        """Stop everything."""
        self._http.close()
        for process in self.processes:
            process.end()

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response | None:
        """An answer; None while the server is away."""
        try:
            return self._http.request(method, f"{self.url}{path}", **options)
        except httpx2.RequestError:
            return None


@contextmanager
def _launchers(service: Service, found: Measured) -> Iterator[None]:
    """Ask as launchers do, until the block ends."""
    done = threading.Event()

    def ask(name: str, times: list[float]) -> None:
        started = time.perf_counter()
        answer = service.ask("POST", "/v1/plans?wait=60", json=request(name))
        if answer is None:
            return
        if answer.status_code == 200:
            times.append(time.perf_counter() - started)
        elif answer.status_code != 202:
            found.wrong.append(f"a launcher got {answer.status_code}: {answer.text[:200]}")

    def known() -> None:
        while not done.wait(0.1):
            ask("known", found.known_s)

    def new() -> None:
        number = 0
        while not done.wait(NEW_EVERY_S):
            number += 1
            ask(f"new-{number}", found.new_s)

    ask("known", [])
    threads = [threading.Thread(target=work) for work in (known, new)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def run(num_plans: int, num_workers: int, num_kills: int, *, seed: int = 0) -> Measured:
    """One regeneration from its beginning to its end."""
    found = Measured()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(Postgres())
        database = Database(postgres.url)
        stack.callback(database.close)
        fill(database, num_plans)
        service = Service(postgres.url, num_workers, folder)
        stack.callback(service.end)
        with _launchers(service, found):
            _regenerate(service, num_plans, num_kills, random.Random(seed), found)
        _account(database, num_plans, found)
        service.end()
        found.wrong += [f"planner {pid} was left" for pid in planners(service.mark)]
    return found


def _regenerate(service: Service, num_plans: int, num_kills: int, rng: random.Random, found: Measured) -> None:
    path = f"/v1/clusters/{quote(REQUEST['cluster']['name'])}/revisions"
    body = {**SLOWER, "scope": "lineages", "policy": {"activate_within_percent": 1000}}
    started = time.monotonic()
    answer = wait_for("the change to be accepted", lambda: service.ask("POST", path, json=body))
    link = answer.json()["links"]["self"]
    kill_at = sorted(rng.uniform(0.05, 0.9) for _ in range(num_kills))
    while time.monotonic() - started < LONGEST_S:
        got = service.ask("GET", link)
        state = {} if got is None or got.status_code != 200 else got.json()
        if state.get("state") == "done":
            break
        done = state.get("items", {}).get("done", 0)
        if kill_at and done >= kill_at[0] * num_plans:
            kill_at.pop(0)
            process = rng.choice(service.processes)
            process.kill()
            process.start()
        time.sleep(0.1)
    found.seconds = time.monotonic() - started
    found.verdicts = {name: number for name, number in state.get("verdicts", {}).items() if number}
    if state.get("state") != "done" or state["items"]["done"] != num_plans or kill_at:
        found.wrong.append(f"not done: {state}")


def _account(database: Database, num_plans: int, found: Measured) -> None:
    with database.read() as session:
        query = select(RevisionRow.lineage_id, func.count()).group_by(RevisionRow.lineage_id)
        revisions = dict(session.execute(query).all())
        jobs = session.scalars(select(JobRow).where(JobRow.priority == JobPriority.REGENERATION)).all()
    found.num_jobs = len(jobs)
    found.wrong += [f"{name} has {number} revisions" for name, number in revisions.items() if number != 2]
    if len(revisions) != num_plans or len({job.plan_id for job in jobs}) != num_plans:
        found.wrong.append(f"{len(revisions)} lineages and {len(jobs)} jobs for {num_plans} plans")


def _row(num_plans: int, num_workers: int, num_kills: int, found: Measured) -> dict[str, Any]:
    return {
        "plans": num_plans,
        "workers": num_workers,
        "kills": num_kills,
        "seconds": round(found.seconds, 1),
        "plans_per_s": round(num_plans / found.seconds, 2),
        "known": latency(found.known_s),
        "new": latency(found.new_s),
        "verdicts": found.verdicts,
        "jobs": found.num_jobs,
        "wrong": found.wrong,
    }


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield from (str(row[name]) for name in ("plans", "workers", "kills", "seconds", "plans_per_s"))
    yield from (
        f"{row[name]['p50_ms']}, {row[name]['p99_ms']} ms of {row[name]['count']}" for name in ("known", "new")
    )
    yield ", ".join(f"{number} {name}" for name, number in row["verdicts"].items())


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--kills", type=int, nargs="+", default=[10])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| plans | workers | kills | seconds | plans/s | known plan p50, p99 | new plan p50, p99 | verdicts |")
    print("|---|---|---|---|---|---|---|---|")
    for num_kills in arguments.kills:
        for num_workers in arguments.workers:
            found = run(arguments.plans, num_workers, num_kills)
            rows.append(_row(arguments.plans, num_workers, num_kills, found))
            print("| " + " | ".join(_cells(rows[-1])) + " |", flush=True)
            for line in found.wrong[:20]:
                print(f"wrong: {line}")
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
