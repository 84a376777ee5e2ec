import json

import jsonschema
import pytest

from api.http import create_app
from api.http.examples import CLUSTER, MODEL, PROFILE, REFERENCES, REQUEST
from api.settings import Settings
from planner.schema import ClusterDescription, ModelDescription, PlanRequest, Profile, RequestReferences
from tests.api.http.server import FAST, running_client


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory):
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'test.db'}"))
    return app.openapi()


def test_every_operation_is_described(document: dict) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) == 53
    for operation in operations:
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]


def test_every_reference_leads_somewhere(document: dict) -> None:
    schemas = document["components"]["schemas"]

    def references(value):
        match value:
            case dict():
                if isinstance(value.get("$ref"), str):
                    yield value["$ref"]
                for inner in value.values():
                    yield from references(inner)
            case list():
                for inner in value:
                    yield from references(inner)

    found = set(references(document))
    assert "#/components/schemas/PlanRequest" in found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_examples_follow_the_document(document: dict) -> None:
    def check(name: str, value) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    check("PlanRequest", REQUEST)
    check("RequestReferences", REFERENCES)


def test_answers_follow_the_document(sqlite_url: str) -> None:
    with running_client(sqlite_url) as client:
        document = client.get("/openapi.json").json()

        def check(name: str, value) -> None:
            schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(value)

        job = client.post("/v1/plans", params={"wait": 0}, json={**REQUEST, **FAST}).json()
        check("Job", job)
        check("Plan", client.post("/v1/plans", json={**REQUEST, **FAST}).json())
        check("Job", client.get(job["links"]["self"]).json())
        check("JobPage", client.get("/v1/jobs").json())
        check("PlanPage", client.get("/v1/plans").json())
        check("DocumentPage", client.get("/v1/models").json())
        plan_id = client.get("/v1/plans").json()["items"][0]["plan_id"]
        check("Lineage", client.post("/v1/lineages", json={"name": "job", "plan": plan_id}).json())
        check("LineagePage", client.get("/v1/lineages").json())
        check("RevisionPage", client.get("/v1/lineages/job/revisions").json())
        check("ActivationPage", client.get("/v1/lineages/job/activations").json())
        check("Plan", client.get("/v1/lineages/job/active").json())
        compared = client.get("/v1/lineages/job/difference", params={"before": 1, "after": 1}).json()
        check("RevisionsCompared", compared)
        revisions = f"/v1/clusters/{CLUSTER['name']}/revisions"
        lost = {"changes": [{"change": "nodes_lost", "num_nodes": 1}]}
        check("NewClusterRevision", lost)
        check("RegenerationPreview", client.post(revisions, json={**lost, "dry_run": True}).json())
        regeneration = client.post(revisions, json=lost).json()
        check("Regeneration", regeneration)
        check("RegenerationItemPage", client.get(regeneration["links"]["items"]).json())
        check("ClusterRevisionPage", client.get(revisions).json())
        check("Problem", client.get("/nothing").json())
        check("Readiness", client.get("/readyz").json())


def test_the_examples_are_valid_documents() -> None:
    ModelDescription.from_object(MODEL)
    ClusterDescription.from_object(CLUSTER)
    Profile.from_object(PROFILE)
    PlanRequest.from_object(REQUEST)
    RequestReferences.model_validate(json.loads(json.dumps(REFERENCES)))
