"""`shardwright report` against a real server process."""

from pathlib import Path

import pytest

from api.cli.__main__ import main
from api.quantities import duration
from tests.api.http.server import REQUEST, Server
from tests.api.http.test_measurements import report


def test_predicted_against_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(f"sqlite:///{tmp_path / 'test.db'}", {"SHARDWRIGHT_DRIFT_STEP_PERCENT": "20"})
    monkeypatch.setenv("SHARDWRIGHT_URL", server.url)
    monkeypatch.setenv("COLUMNS", "160")
    try:
        plan = server.http.post("/v1/plans?wait=300", json=REQUEST).json()
        plan_id, predicted = plan["envelope"]["plan_id"], plan["body"]["predictions"]
        assert main(["report", plan_id]) == 0
        told = capsys.readouterr().out
        assert duration(predicted["step_time_ns"]) in told
        assert "Nothing was reported yet." in told
        assert "StepTimer" in told
        for number in range(5):
            server.http.post("/v1/measurements", json=report(plan, number, step=1.15))
        assert main(["report", plan_id]) == 0
        told = capsys.readouterr().out
        assert "Steps are as predicted: within 20.0 %" in told
        assert told.count("+15.0 %") == 5
        for number in range(5, 10):
            server.http.post("/v1/measurements", json=report(plan, number, step=1.5))
        assert main(["report", plan_id]) == 0
        assert "Steps take 50.0 % longer than predicted" in capsys.readouterr().out
        assert main(["report", f"sha256:{'0' * 64}"]) == 2
        assert "there is no plan" in " ".join(capsys.readouterr().err.split())
    finally:
        server.end()
