from pathlib import Path

import pytest

from api.cli.__main__ import main
from tests.api.http.gated import Gated
from tests.api.http.server import Server, wait_until


def test_an_operator_lists_and_cancels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Server] = []

    def start(url: str, **environment: str) -> Server:
        started.append(Server(url, environment))
        return started[-1]

    def run(*words: str) -> tuple[int, str]:
        code = main(["jobs", *words])
        told = capsys.readouterr()
        return code, "".join((told.out + told.err).split())

    one = Gated(start, f"sqlite:///{tmp_path / 'test.db'}", tmp_path / "gate")
    try:
        one.give_provisional_plans()
        link = one.post("model")
        wait_until(lambda: one.get(link)["provisional_plan_id"] is not None)
        job = one.get(link)
        monkeypatch.setenv("SHARDWRIGHT_URL", one.server.url)
        assert job["job_id"] in run("list", "--state", "running")[1]
        assert run("cancel", job["job_id"]) == (
            0,
            f"{job['job_id']}cancelled;bestplansofar:{job['provisional_plan_id']}",
        )
        code, told = run("list")
        assert (code, "cancelled" in told, "anonymouscancelledit" in told) == (0, True, True)
        assert job["job_id"] not in run("list", "--state", "running")[1]
        assert run("cancel", "nothing")[0] == 2
    finally:
        for server in started:
            server.end()
