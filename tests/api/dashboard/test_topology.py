import copy
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER
from tests.api.dashboard.conftest import HTML


@pytest.mark.parametrize("change", [{"device": "a card of next year"}, {"intra_node": "a link of next year"}])
def test_what_no_catalog_knows_takes_no_page_with_it(open_client: TestClient, change: dict[str, str]) -> None:
    name = 'a/"<b>'
    cluster = copy.deepcopy(CLUSTER) | {"name": name}
    cluster["node_groups"][0] |= change
    assert open_client.post("/v1/clusters", json=CLUSTER).status_code == 201
    assert open_client.post("/v1/clusters", json=cluster).status_code == 201
    for path in ("/", "/clusters", f"/clusters/{quote(name, safe='')}", "/plans"):
        answer = open_client.get(path, headers=HTML)
        assert answer.status_code == 200, path
        assert "a/&#34;&lt;b&gt;" in answer.text
        assert "<b>" not in answer.text
    assert next(iter(change.values())) in open_client.get(f"/clusters/{quote(name, safe='')}").text
    listed = open_client.get("/v1/current-clusters").json()["items"]
    assert [one["name"] for one in listed] == [name, CLUSTER["name"]]
    assert (listed[0]["device_memory_bytes"] == 0) == ("device" in change)
