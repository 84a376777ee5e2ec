from urllib.parse import quote

from fastapi.testclient import TestClient

from api.http.examples import CLUSTER
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
