from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from api.http.body import BODIES_AT_ONCE
from api.http.examples import CLUSTER
from planner.schema import InconsistentRequest
from tests.api.dashboard.conftest import HTML, form_token
from tests.api.http.server import REQUEST


def test_a_solve_on_other_ranks_leaves_the_cluster_as_it_is(open_client: TestClient) -> None:
    """It was stored as the newest description of the same name, and taken for what the cluster is now."""
    plan_id = open_client.post("/v1/plans?wait=300", json=REQUEST).json()["envelope"]["plan_id"]
    current = f"/v1/clusters/{quote(CLUSTER['name'])}/current"
    before = open_client.get(current).json()
    form = {"csrf": form_token(open_client, "/"), "plan": plan_id, "num_ranks": "8"}
    answer = open_client.post("/what-if/solve", data=form, headers=HTML, follow_redirects=False)
    assert answer.status_code == 303
    assert open_client.get(current).json() == before
    listed = open_client.get("/v1/current-clusters").json()["items"]
    assert [(one["name"], one["num_devices"]) for one in listed] == [
        (CLUSTER["name"], 16),
        (f"{CLUSTER['name']}, 8 ranks", 8),
    ]


def test_few_are_predicted_at_a_time(open_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take seconds of a core; all threads at once would leave none for other pages."""
    lock, full = Lock(), Barrier(BODIES_AT_ONCE)
    now, most = 0, 0

    def what_if(*_: object) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait(60)
        with lock:
            now -= 1
        raise InconsistentRequest("for a test")

    monkeypatch.setattr(open_client.app.state.services.simulations, "what_if", what_if)
    form = {"csrf": form_token(open_client, "/"), "plan": "p"}

    def ask(_number: int) -> str:
        return open_client.post("/what-if/simulate", data=form, headers=HTML).text

    with ThreadPoolExecutor(4 * BODIES_AT_ONCE) as pool:
        assert all("for a test" in text for text in pool.map(ask, range(4 * BODIES_AT_ONCE)))
    assert most == BODIES_AT_ONCE
