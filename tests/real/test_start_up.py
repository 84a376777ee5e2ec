"""A rank, the service or the network goes away while a job starts: it starts with the cached plan, or every rank
that is left ends with one message. What plain FSDP2 does where ranks do not do the same: it waits.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.schema import FixedChoice, PlanRequest, Precision, Workload
from runtime_client.client import PlanClient
from runtime_client.describe import describe
from tests.planner.factories import tiny_cluster
from tests.real.launch import ROOT
from tests.real.proxy import Proxy
from tests.real.service import running_service, start_service
from tests.real.towers import BATCH, SEQUENCE, example

pytestmark = [pytest.mark.real, pytest.mark.slow]

HANG_S = 5.0
"""Ranks that have not gone on for so long, though nothing of theirs is slow, are held to hang."""
SLOW_PLANNER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Ranks:
    """Two ranks, new ones for each job, and what they say."""

    def __init__(self, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/real/rank.py"), str(ROOT / "tests/real/start_up.py"), *args],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def tell(self, case: str, cache: Path | str = "") -> list[int]:
        """Start a job; returns the processes of its ranks."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "cache": str(cache)}) + "\n")
        return self.hear()["pids"]

    def hear(self, timeout_s: float = 100.0) -> dict[str, Any]:
        """What is said next.

        Raises:
            queue.Empty: nothing is said.
        """
        return self._lines.get(timeout=timeout_s)

    def ends(self) -> list[dict[str, Any]]:
        """What each rank said before it ended; nothing of one that was killed."""
        answers: list[dict[str, Any]] = [{}, {}]
        num_ended = 0
        while num_ended < 2:
            line = self.hear()
            if "status" in line:
                num_ended += 1
                continue
            answers[line.pop("rank")] = line
        return answers

    def start(self, case: str, cache: Path | str = "") -> list[dict[str, Any]]:
        self.tell(case, cache)
        return self.ends()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def request_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    request = PlanRequest(
        model=describe(example, name="towers", micro_batch=BATCH, sequence=SEQUENCE, param_dtype=None),
        cluster=tiny_cluster(2),
        workload=Workload(
            micro_batch=BATCH,
            sequence=SEQUENCE,
            global_batch=2 * BATCH,
            precision=Precision(param_dtype=None, reduce_dtype=None),
        ),
        fixed=(FixedChoice(knob="mesh.shard", value=2),),
        client_features=(),
    )
    file = tmp_path_factory.mktemp("request") / "request.json"
    file.write_text(request.to_json())
    return file


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, request_file: Path) -> Iterator[Proxy]:
    """The network to a service that knows the plan already."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder / "plans.db") as url:
        PlanClient(url, deadline_s=60, cache_dir=folder).plan(PlanRequest.from_json(request_file.read_text()))
        proxy = Proxy(url)
        yield proxy
        proxy.close()


@pytest.fixture(scope="module")
def ranks(proxy: Proxy, request_file: Path) -> Iterator[Ranks]:
    ranks = Ranks(proxy.url, str(request_file))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def cache(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache with the plan that the service gave, and its identity."""
    folder = tmp_path_factory.mktemp("cache")
    answers = ranks.start("starts", folder)
    plans = {answer["plan"] for answer in answers}
    assert len(plans) == 1
    return folder, plans.pop()


@pytest.mark.parametrize("passes", [0, 300], ids=["silent", "stops amid the answer"])
def test_the_network_is_cut(
    ranks: Ranks, proxy: Proxy, cache: tuple[Path, str], tmp_path: Path, passes: int
) -> None:
    folder, plan = cache
    proxy.passes = passes
    try:
        assert ranks.start("starts", folder) == [{"plan": plan}] * 2
        first, second = ranks.start("starts", tmp_path / "empty")
    finally:
        proxy.passes = None
    assert first["error"] == "no_plan_available"
    assert second["error"] == "plan_not_shared"
    assert "rank 0 has no plan: NoPlanAvailable" in second["message"]
    assert ranks.start("starts", tmp_path / "again") == [{"plan": plan}] * 2


@pytest.mark.parametrize("has_cache", [True, False])
def test_the_service_is_killed_while_it_plans(
    ranks: Ranks, proxy: Proxy, cache: tuple[Path, str], tmp_path: Path, has_cache: bool
) -> None:
    folder, plan = cache
    first_url = proxy.target_url
    process, url = start_service(tmp_path / "plans.db", planner=SLOW_PLANNER)
    try:
        proxy.forward_to(url)
        ranks.tell("starts", folder if has_cache else tmp_path / "empty")
        wait_until(lambda: children(process.pid))
    finally:
        process.kill()
        process.communicate()
        answers = ranks.ends()
        proxy.forward_to(first_url)
    if has_cache:
        assert answers == [{"plan": plan}] * 2
    else:
        assert [answer["error"] for answer in answers] == ["no_plan_available", "plan_not_shared"]


def test_one_rank_that_refuses_is_told_on_all(ranks: Ranks, cache: tuple[Path, str]) -> None:
    first, second = ranks.start("rank 1 differs", cache[0])
    assert first["error"] == "refused_on_another_rank"
    assert "rank 1 cannot apply the plan: FingerprintMismatch: model_fingerprint is" in first["message"]
    assert second["error"] == "fingerprint_mismatch"


def test_rank_0_is_killed_while_it_asks(ranks: Ranks, proxy: Proxy, tmp_path: Path) -> None:
    proxy.passes = 0
    try:
        killed, left = ranks.start("dies asking", tmp_path)
    finally:
        proxy.passes = None
    assert killed == {}
    assert left["error"] == "plan_not_shared"


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_is_killed_before_it_applies_the_plan(ranks: Ranks, cache: tuple[Path, str], dead: int) -> None:
    answers = ranks.start(f"rank {dead} dies", cache[0])
    assert answers[dead] == {}
    assert answers[1 - dead]["error"] == "ranks_missing"
    words = ("rank 0 went away", "rank 1 did not come to apply the plan within")
    assert words[dead] in answers[1 - dead]["message"]


@pytest.mark.parametrize("case", ["plain refusal", "plain difference"])
def test_plain_fsdp2_waits_where_ranks_do_not_do_the_same(ranks: Ranks, case: str) -> None:
    pids = ranks.tell(case)
    said = sorted((ranks.hear(), ranks.hear()), key=lambda line: line["rank"])
    try:
        assert said[0]["sharded"]
        assert said[1].get("sharded") or "doesn't support scalar parameters" in said[1]["raised"]
        with pytest.raises(queue.Empty):
            ranks.hear(timeout_s=HANG_S)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        ranks.ends()


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
