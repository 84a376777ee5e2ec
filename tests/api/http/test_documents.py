import pytest
from fastapi.testclient import TestClient

from api.http.examples import CLUSTER, DOCUMENTS, MODEL
from planner.schema import ModelDescription
from profiles_db.documents import DOCUMENT_TYPES
from profiles_db.tables import DocumentKind


@pytest.mark.parametrize("kind", DocumentKind)
def test_a_document_is_kept_once_and_comes_back(client: TestClient, kind: DocumentKind) -> None:
    document = DOCUMENT_TYPES[kind].from_object(DOCUMENTS[kind])
    first = client.post(f"/v1/{kind}s", json=DOCUMENTS[kind])
    assert first.status_code == 201
    summary = first.json()
    assert summary["content_hash"] == document.content_hash()
    assert first.headers["Location"] == summary["links"]["self"] == f"/v1/{kind}s/{document.content_hash()}"
    again = client.post(f"/v1/{kind}s", content=document.to_json(), headers={"content-type": "application/json"})
    assert (again.status_code, again.json()) == (200, summary)
    read = client.get(summary["links"]["self"])
    assert read.content == document.canonical_bytes()
    assert read.headers["ETag"] == f'"{document.content_hash()}"'
    assert client.get(f"/v1/{kind}s").json() == {"items": [summary], "next": None}


def test_not_modified(client: TestClient) -> None:
    link = client.post("/v1/models", json=MODEL).headers["Location"]
    tag = client.get(link).headers["ETag"]
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = client.get(link, headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", tag)
    assert client.get(link, headers={"If-None-Match": '"other"'}).status_code == 200
    for unknown in (link.replace(tag[8:12], "0000", 1), link.replace("/models/", "/clusters/")):
        assert client.get(unknown, headers={"If-None-Match": "*"}).status_code == 404


def test_a_model_is_not_found_as_a_cluster(client: TestClient) -> None:
    content_hash = ModelDescription.from_object(MODEL).content_hash()
    client.post("/v1/models", json=MODEL)
    answer = client.get(f"/v1/clusters/{content_hash}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_pages(client: TestClient) -> None:
    for number in range(5):
        client.post("/v1/clusters", json={**CLUSTER, "name": f"cluster {number}"})
    names, cursor = [], None
    while True:
        parameters = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/clusters", params=parameters).json()
        names.append([item["name"] for item in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert names == [["cluster 4", "cluster 3"], ["cluster 2", "cluster 1"], ["cluster 0"]]
