"""What a service stands: known plans by POST and by GET, many new requests at once, and how much memory it takes.

    python -m benchmarks.load                 # make verify-load

A real server on the loopback address, on SQLite (one process) and on PostgreSQL (with two workers), the client on
the same machine. Writes `docs/measurements/load.json`; exits with 1 when an answer is wrong.
"""

import argparse
import copy
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.durability.processes import children_of, wait_for
from benchmarks.durability.world import World, world_on
from benchmarks.http_load import encoded, send
from benchmarks.record import latency, provenance
from benchmarks.regeneration import request

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "measurements" / "load.json"
LARGE = ROOT / "examples" / "models" / "llama-3-70b.json"
CONNECTIONS = (1, 8, 64)
MOST = 5000
"""Requests of one kind, at most."""
SAMPLE_S = 0.25


def large_request() -> dict[str, Any]:
    """Of a description of 80 blocks, on eight nodes."""
    value = {**copy.deepcopy(request("")), "model": json.loads(LARGE.read_text()), "search": {"gap": 0.5}}
    value["cluster"]["node_groups"][0]["num_nodes"] = 8
    return value


class Memory(threading.Thread):
    """Samples the resident memory of processes and of those that they start, in bytes."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._done = threading.Event()
        self.peak: dict[str, int] = {}

    def run(self) -> None:
        """As a thread."""
        while not self._done.wait(SAMPLE_S):
            for name, size_bytes in sizes(self._world).items():
                self.peak[name] = max(size_bytes, self.peak.get(name, 0))

    def stop(self) -> None:
        """Take no more samples."""
        self._done.set()
        self.join()


def sizes(world: World) -> dict[str, int]:
    """Resident bytes of the server, of all workers and of all planners now."""
    planners = [child for process in world.processes for child in children_of(process.pid)]
    pids = {"server": [world.server.pid], "workers": [one.pid for one in world.workers], "planners": planners}
    return {name: sum(map(_resident_bytes, own)) for name, own in pids.items()}


def _resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def watched(world: World, what: str, rows: list[dict[str, Any]]) -> Iterator[None]:
    """Add a row with the memory before, at most, and after."""
    before, memory = sizes(world), Memory(world)
    memory.start()
    yield
    memory.stop()
    after = sizes(world)
    rows.append({"during": what, "before": before, "peak": memory.peak, "after": after})


def known(world: World, seconds: float, wrong: list[str]) -> Iterator[dict[str, Any]]:
    """Requests whose plan is known, in each way to ask for it."""
    for size, body in (("small", request("known")), ("70B", large_request())):
        plan = wait_for(f"the {size} plan", lambda body=body: _plan(world, body))
        path = f"/v1/plans/{plan['envelope']['plan_id']}"
        etag = {"If-None-Match": f'"{plan["envelope"]["plan_id"]}"'}
        ways = {
            "POST": (encoded("POST", "/v1/plans?wait=60", body), 200),
            "GET": (encoded("GET", path), 200),
            "GET with its ETag": (encoded("GET", path, headers=etag), 304),
        }
        for way, (text, expected) in ways.items():
            for num_connections in CONNECTIONS:
                load = send(world.url, text, num_connections=num_connections, longest_s=seconds, most=MOST)
                if set(load.statuses) != {expected}:
                    wrong.append(f"{way} of the {size} plan: {dict(load.statuses)}")
                yield {
                    "model": size,
                    "way": way,
                    "request_bytes": len(text),
                    "answer_bytes": load.num_bytes // max(1, len(load.durations_s)),
                    "connections": num_connections,
                    "per_s": round(len(load.durations_s) / load.seconds, 1),
                    **latency(load.durations_s),
                }


def new(world: World, count: int, wrong: list[str]) -> dict[str, Any]:
    """So many requests at once that nobody asked before, each on a connection of its own."""
    names = [f"new-{number}" for number in range(count)]
    answers: dict[str, Any] = {}
    times: list[float] = []
    started = time.perf_counter()

    def ask(name: str) -> None:
        answers[name] = _plan(world, request(name))
        times.append(time.perf_counter() - started)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = [plan["body"]["inputs"]["request"] for plan in answers.values() if plan is not None]
    numbers = Counter((world.num_jobs(one), world.num_plans(one)) for one in requests)
    if numbers != {(1, 1): count}:
        wrong.append(f"{len(requests)} of {count} new requests were answered, with jobs and plans {dict(numbers)}")
    return {"requests": count, "answered": len(requests), "one_result": numbers[(1, 1)], **latency(times)} | {
        "last_s": round(max(times), 1)
    }


def _plan(world: World, body: dict[str, Any]) -> dict[str, Any] | None:
    answer = world.ask(body, 600)
    return answer.json() if answer is not None and answer.status_code == 200 else None


def run(kind: str, *, seconds: float, num_new: int) -> dict[str, Any]:
    """All of it on one database."""
    wrong: list[str] = []
    memory: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, world_on(kind, Path(folder)) as world:
        with watched(world, "known plans", memory):
            rows = list(known(world, seconds, wrong))
        with watched(world, "known plans, again", memory):
            list(known(world, seconds, wrong))
        with watched(world, "new requests", memory):
            made = new(world, num_new, wrong)
    return {"database": kind, "known": rows, "new": made, "memory": memory, "wrong": wrong}


def _print(found: dict[str, Any]) -> None:
    for row in found["known"]:
        cells = [found["database"], row["model"], row["way"], row["connections"], row["per_s"], row["p50_ms"]]
        print("| " + " | ".join(map(str, [*cells, row["p99_ms"]])) + " |")
    print(found["new"])
    for row in found["memory"]:
        shown = {
            when: {name: f"{size // 2**20} MiB" for name, size in row[when].items()}
            for when in ("before", "peak", "after")
        }
        print(row["during"], shown)
    for line in found["wrong"]:
        print(f"wrong: {line}")


def main() -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], action="append", help="only on this one")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each kind of request, at most")
    parser.add_argument("--new", type=int, default=64, help="new requests at once")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    print("| database | model | request | connections | answers/s | p50 ms | p99 ms |")
    print("|" + "---|" * 7, flush=True)
    found = []
    for kind in arguments.database or ("sqlite", "postgresql"):
        found.append(run(kind, seconds=arguments.seconds, num_new=arguments.new))
        _print(found[-1])
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(provenance() | {"runs": found}, indent=1) + "\n")
    return int(any(one["wrong"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
