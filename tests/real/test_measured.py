"""A loop of ten steps on gloo gives one measurement, the slowest rank's, that a real service takes."""

from pathlib import Path

import pytest

from planner.schema import Measurement
from tests.api.http.server import REQUEST, Server
from tests.real.launch import run_ranks

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).parent / "measured.py"


def test_ranks_agree_on_one_measurement_and_the_service_takes_it(tmp_path: Path) -> None:
    cluster = REQUEST["cluster"]
    (group,) = cluster["node_groups"]
    two = {**cluster, "node_groups": [{**group, "num_nodes": 1, "devices_per_node": 2}]}
    server = Server(f"sqlite:///{tmp_path / 'test.db'}", {})
    try:
        plan = server.http.post("/v1/plans?wait=300", json={**REQUEST, "cluster": two}).json()
        plan_id = plan["envelope"]["plan_id"]
        words = (server.url, str(tmp_path / "cache"), plan_id)
        outputs = run_ranks(SCRIPT, 2, words, log_dir=tmp_path / "logs", env={"NO_PROXY": "127.0.0.1"})
        (first,), (second,) = (
            [Measurement.from_json(line) for line in output.stdout.splitlines()] for output in outputs
        )
        assert (first.first_step, first.last_step, first.num_ranks) == (4, 9, 2)
        assert first.step_time_ns == second.step_time_ns >= 10_000_000
        assert (first.step_time_p99_ns, first.peak_bytes, first.reserved_bytes) == (None, None, None)
        (stored,) = server.http.get("/v1/measurements").json()["items"]
        assert (stored["plan"], stored["step_time_ns"]) == (plan_id, first.step_time_ns)
        assert (stored["run"], stored["torch_version"]) == ("small", first.torch_version)
    finally:
        server.end()
