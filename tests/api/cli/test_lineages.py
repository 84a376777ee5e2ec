"""The commands against a real server process, and the client that launchers use."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli.__main__ import main
from planner.schema import Plan
from runtime_client.client import PlanClient
from runtime_client.errors import NoPlanAvailable, PlanServiceError
from tests.api.http.server import REQUEST, Server


@dataclass(frozen=True)
class Shop:
    server: Server
    plans: list[str]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    server = Server(f"sqlite:///{tmp_path_factory.mktemp('lineages') / 'test.db'}", {})
    requests = [{**REQUEST, "limits": {"memory_bytes": size}} for size in (70 * 2**30, 60 * 2**30)]
    answers = [server.http.post("/v1/plans?wait=300", json=request) for request in requests]
    yield Shop(server, [answer.json()["envelope"]["plan_id"] for answer in answers])
    server.end()


@pytest.fixture
def run(shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple]:
    monkeypatch.setenv("SHARDWRIGHT_URL", shop.server.url)

    def command(*words: str, group: str = "lineages") -> tuple[int, str, str]:
        code = main([group, *words])
        told = capsys.readouterr()
        return code, told.out, " ".join(told.err.split())

    return command


def test_a_night_of_an_operator(shop: Shop, run: Callable[..., tuple], tmp_path: Path) -> None:
    code, told, _ = run("add", "night", shop.plans[0], "--why", "first run")
    assert (code, told) == (0, "night: revision 1, first run; the first revision; revision 1 is active\n")
    assert "limits" in run("add", "night", shop.plans[1])[1]
    assert run("rollback", "night")[0] == 2
    assert run("activate", "night", "2", "--why", "less memory")[1] == (
        "night: revision 2 is active (before: revision 1)\n"
    )
    assert run("rollback", "night")[1] == "night: revision 1 is active (before: revision 2)\n"
    listed = run("list", "--name", "night")[1]
    assert listed.splitlines()[1].split()[:1] == ["night"]
    shown = run("show", "night")[1]
    assert [word in shown for word in ("less memory", "rollback from revision 2", "active")] == [True] * 3
    different = run("diff", "night", "1", "2")[1]
    assert "What was asked differently" in different
    assert "Predictions" in different or "The two plans are the same" in different
    plan = tmp_path / "plan.json"
    assert run("active", "night", "-o", str(plan))[0] == 0
    assert Plan.from_json(plan.read_bytes()).envelope.plan_id == shop.plans[0]


def test_what_cannot_be_done(run: Callable[..., tuple]) -> None:
    for words, told in [
        (("show", "nothing"), "there is no lineage nothing"),
        (("activate", "nothing", "1"), "there is no lineage nothing"),
        (("add", "x", f"sha256:{'0' * 64}"), "is stored here"),
        (("active", "nothing"), "there is no lineage nothing"),
        (("list", "--url", "http://127.0.0.1:9"), "does not answer"),
        (("list", "--url", "ftp://x"), "not an address of HTTP"),
    ]:
        code, out, error = run(*words)
        assert (code, out) == (2, "")
        assert told in error


def test_a_launcher_keeps_the_last_active_plan(
    shop: Shop, run: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("add", "launched", shop.plans[0])
    client = PlanClient(shop.server.url, cache_dir=tmp_path)
    fresh = client.active("launched", world_size=16)
    assert (fresh.stale, fresh.plan.envelope.lineage, fresh.plan.envelope.revision) == (False, "launched", 1)
    away = PlanClient("http://127.0.0.1:9", cache_dir=tmp_path, deadline_s=0.1)
    last = away.active("launched", world_size=16)
    assert (last.stale, last.plan) == (True, fresh.plan)
    with pytest.raises(NoPlanAvailable, match="for 16 ranks, not 8"):
        PlanClient(shop.server.url, cache_dir=tmp_path, deadline_s=5).active("launched", world_size=8)
    with pytest.raises(PlanServiceError, match="there is no lineage"):
        client.active("launched", model=f"sha256:{'0' * 64}")
    with pytest.raises(NoPlanAvailable, match="holds no plan for lineage other"):
        away.active("other")


def test_a_rack_loses_power(shop: Shop, run: Callable[..., tuple]) -> None:
    cluster = REQUEST["cluster"]["name"]
    run("add", "powered", shop.plans[0])
    run("add", "powered-too", shop.plans[1])
    lost = ("revise", cluster, "--nodes-lost", "1", "--only-lineages", "--ask", "--why", "rack 7 lost power")
    previewed = run(*lost, "--dry-run", group="clusters")[1]
    assert [word in previewed for word in ("would be made again", "powered", "num_nodes: 2 -> 1")] == [True] * 3
    begun = run(*lost, group="clusters")[1]
    (regeneration,) = [word for word in begun.split() if word.startswith("reg_")]
    path = f"/v1/regenerations/{regeneration}"
    while shop.server.http.get(path).json()["state"] == "running":
        time.sleep(0.1)
    shown = run("show", regeneration, group="regenerations")[1]
    assert "waiting" in shown
    assert regeneration in run("list", group="regenerations")[1]
    assert "item 1: rejected" in run("reject", regeneration, "1", group="regenerations")[1]
    assert "item 2: accepted" in run("accept", regeneration, group="regenerations")[1]
    assert "rack 7 lost power" in run("history", cluster, group="clusters")[1]
    assert "done" in run("cancel", regeneration, group="regenerations")[1]
    assert "lacks a share" in run("revise", cluster, "--degraded", "rail", group="clusters")[2]
    assert "--memory" in run("revise", cluster, "--memory", "x", group="clusters")[2]
