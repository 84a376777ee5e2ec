"""One death: two requests, a victim, a random moment."""

import os
import signal
import threading
import time
from random import Random
from typing import Any

from benchmarks.durability.processes import Process, children_of, is_alive, wait_for
from benchmarks.durability.world import World
from profiles_db.tables import JobRow, JobState

NUM_REQUESTS = 2
LATEST_S = 4.0
"""The moment lies between the first request and so much later, when all plans are nearly made."""
VICTIMS = {
    "sqlite": ("server", "planner"),
    "postgresql": ("server", "worker", "planner", "postgres", "paused worker"),
}


def trial(world: World, victim: str, seed: int) -> dict[str, Any]:
    """Requests while a victim dies, and what came of them."""
    rng = Random(f"{world.kind} {victim} {seed}")
    moment_s = rng.uniform(0.0, LATEST_S)
    death = Death(world, victim, rng, moment_s)
    started = time.monotonic()
    death.start()
    names = [f"{victim} {seed} {number}" for number in range(NUM_REQUESTS)]
    job_ids = [world.accepted(name) for name in names]
    death.join()
    if death.problems:
        raise RuntimeError(f"{victim} {seed}: {death.problems}; {world.state(job_ids)}")
    try:
        jobs = [world.ended(job_id) for job_id in job_ids]
    except TimeoutError as error:
        raise RuntimeError(f"{victim} {seed}: {error}; {world.state(job_ids)}") from None
    death.bring_back()
    lasts = [row for job_id in job_ids if (row := world.row(job_id)) is not None]
    wait_for("the last planner to end", lambda: not world.planners())
    answers = [world.post(name, 60) for name in names]
    problems = [*death.problems, *_problems(world, jobs, lasts)]
    if any(answer is None or answer.status_code != 200 for answer in answers):
        problems.append("a plan cannot be fetched")
    return {
        "database": world.kind,
        "victim": victim,
        "trial": seed,
        "moment_s": round(moment_s, 3),
        "accepted": len(job_ids),
        "published": sum(job.state == JobState.SUCCEEDED for job in jobs),
        "starts": sum(job.fence for job in jobs),
        "orphans": death.num_orphans,
        "problems": problems,
        "seconds": round(time.monotonic() - started, 2),
    }


def _problems(world: World, jobs: list[JobRow], lasts: list[JobRow]) -> list[str]:
    found = []
    for job, last in zip(jobs, lasts, strict=True):
        if job.state != JobState.SUCCEEDED:
            found.append(f"{job.job_id} is lost: {job.state} {job.problem}")
        if (job.plan_id, job.finished_at_us) != (last.plan_id, last.finished_at_us):
            found.append(f"{job.job_id} was overwritten")
        if (number := world.num_plans(job.request_hash)) != 1:
            found.append(f"{job.job_id} has {number} plans")
        if (number := world.num_published(job)) > 1:
            found.append(f"{job.job_id} was published {number} times")
    return found


class Death(threading.Thread):
    """Kills at a moment, looks for orphans, and starts the victim again."""

    def __init__(self, world: World, victim: str, rng: Random, moment_s: float) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._victim = victim
        self._moment_s = moment_s
        self._worker = rng.choice(world.workers) if world.workers else world.server
        self._paused: Process | None = None
        self.num_orphans = 0
        self.problems: list[str] = []

    def run(self) -> None:
        """As a thread."""
        time.sleep(self._moment_s)
        try:
            self._strike()
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def _strike(self) -> None:
        match self._victim:
            case "server":
                self._kill(self._world.server)
            case "worker":
                self._kill(self._worker)
            case "planner":
                self._kill_planner()
            case "postgres":
                assert self._world.postgres is not None
                self._world.postgres.kill()
                self._world.postgres.start()
            case "paused worker":
                self._paused = self._worker
                self._worker.signal(signal.SIGSTOP)

    def _kill(self, process: Process) -> None:
        children = process.kill()
        self._await_end(children)
        process.start()

    def _kill_planner(self) -> None:
        """One that runs; where none does, the next that starts, unless all plans are made before."""
        end = time.monotonic() + LATEST_S
        while time.monotonic() < end:
            if found := self._world.planners():
                os.kill(found[0], signal.SIGKILL)
                return
            time.sleep(0.01)

    def _await_end(self, children: list[int]) -> None:
        """Planners of a dead process end with it: the kernel kills them at once."""
        end = time.monotonic() + 5.0
        while any(map(is_alive, children)) and time.monotonic() < end:
            time.sleep(0.01)
        self.num_orphans = sum(map(is_alive, children))
        if self.num_orphans:
            self.problems.append(f"{self.num_orphans} planners outlived their parent")

    def bring_back(self) -> None:
        """Let a paused process go on, and wait until it has done what it was about to."""
        if self._paused is None:
            return
        pid = self._paused.pid
        before = self._world.heartbeat(pid)
        self._paused.signal(signal.SIGCONT)
        wait_for("a heartbeat", lambda: self._world.heartbeat(pid) not in (None, before))
        wait_for("its planners to end", lambda: not children_of(pid))
