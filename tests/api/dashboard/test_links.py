"""Links between pages lead to what they name."""

import copy
import html
import re
from typing import Any

from fastapi.testclient import TestClient

from api.http.examples import CLUSTER
from tests.api.dashboard.conftest import HTML
from tests.api.http.server import REQUEST, wait_until


def _plan(client: TestClient, **changes: Any) -> str:
    answer = client.post("/v1/plans?wait=300", json={**REQUEST, **changes})
    assert answer.status_code == 200
    return answer.json()["envelope"]["plan_id"]


def _check_comparison(client: TestClient, page: str, before: str, after: str) -> None:
    addresses = re.findall(r'href="(/compare\?[^"]*)"', client.get(page, headers=HTML).text)
    assert len(addresses) == 1
    text = client.get(html.unescape(addresses[0]), headers=HTML).text
    assert "What differs in the plans" in text
    assert text.index(f'<option value="{before}" selected>') < text.index(f'<option value="{after}" selected>')


def test_a_revision_is_compared_with_the_active_one(open_client: TestClient) -> None:
    slower = copy.deepcopy(CLUSTER)
    slower["inter_node"]["bytes_per_s"] //= 2
    first, second = _plan(open_client), _plan(open_client, cluster=slower)
    for plan_id in (first, second):
        lineage = open_client.post("/v1/lineages", json={"name": "job", "plan": plan_id}).json()
    _check_comparison(open_client, f"/lineages/{lineage['lineage_id']}", first, second)


def test_a_plan_that_was_made_again_is_compared_with_the_new_one(open_client: TestClient) -> None:
    old = _plan(open_client)
    change = {"change": "link_degraded", "link": "inter_node", "share": 0.5}
    begun = open_client.post(f"/v1/clusters/{CLUSTER['name']}/revisions", json={"changes": [change]})
    path = begun.json()["links"]["self"]
    wait_until(lambda: open_client.get(path).json()["state"] != "running")
    new = open_client.get(f"{path}/items").json()["items"][0]["new_plan"]
    _check_comparison(open_client, path.removeprefix("/v1"), old, new)
