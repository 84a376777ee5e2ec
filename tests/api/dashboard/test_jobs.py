import copy

from fastapi.testclient import TestClient

from tests.api.dashboard.conftest import HTML
from tests.api.http.server import REQUEST, wait_until


def test_only_what_may_fare_better_can_be_tried_again(open_client: TestClient) -> None:
    request = copy.deepcopy(REQUEST)
    request["cluster"]["node_groups"][0]["device"] = "a card of next year"
    job = open_client.post("/v1/plans?wait=0", json=request).json()
    path = f"/v1/jobs/{job['job_id']}"
    wait_until(lambda: open_client.get(path).json()["state"] == "failed")
    for page in ("/jobs", f"/jobs/{job['job_id']}"):
        text = open_client.get(page, headers=HTML).text
        assert "a card of next year" in text
        assert "/retry" not in text
