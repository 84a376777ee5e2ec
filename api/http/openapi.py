"""The OpenAPI document: contract documents are described by their own schemas, though bodies pass as bytes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.http.problems import MEDIA_TYPE, Problem
from api.service.keys import NewKey, Rotation
from api.service.lineages import Activation, NewRevision
from api.service.regenerations.clusters import NewClusterRevision
from api.service.simulations import NewSimulation
from planner.schema import (
    ClusterDescription,
    Measurement,
    ModelDescription,
    Plan,
    PlanRequest,
    Profile,
    RequestReferences,
)

_CONTRACT: tuple[type[BaseModel], ...] = (
    ModelDescription,
    ClusterDescription,
    Profile,
    PlanRequest,
    RequestReferences,
    Plan,
    Measurement,
    Problem,
    NewKey,
    Rotation,
    NewRevision,
    Activation,
    NewClusterRevision,
    NewSimulation,
)
_TAGS = [
    {"name": "plans", "description": "Ask for plans, get and list them."},
    {"name": "simulations", "description": "Predictions without a search, and the step of a plan from inside."},
    {"name": "measurements", "description": "What jobs report of their steps, against what plans predict."},
    {"name": "lineages", "description": "Revisions of a plan for one training, and which is active."},
    {"name": "regenerations", "description": "Clusters change, and their plans are made again."},
    {"name": "jobs", "description": "Searches under way."},
    {"name": "models", "description": "Model descriptions, kept by content."},
    {"name": "clusters", "description": "Cluster descriptions, kept by content."},
    {"name": "profiles", "description": "Measured profiles, kept by content."},
    {"name": "keys", "description": "API keys of the caller's tenant, and who the caller is."},
    {"name": "overview", "description": "How much there is of everything."},
    {"name": "health", "description": "For operators and load balancers."},
]

PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The caller can mend it (RFC 9457); `code` says what it is, `problems` where.",
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": {
                    "type": "urn:shardwright:problem:invalid_document",
                    "title": "Unprocessable Entity",
                    "status": 422,
                    "detail": "the body is not a valid request: workload.micro_batch: Field required",
                    "code": "invalid_document",
                    "problems": [{"path": "workload.micro_batch", "message": "Field required"}],
                },
            }
        },
    },
    "5XX": {
        "description": "The server failed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
}

NOT_CHANGED = {"description": "Not changed since the `If-None-Match` of the request."}


def document_body(*names: str, examples: dict[str, Any]) -> dict[str, Any]:
    """`requestBody` of an operation that takes one of some contract documents."""
    schema = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schema[0] if len(schema) == 1 else {"anyOf": schema},
                    "examples": {name: {"value": value} for name, value in examples.items()},
                }
            },
        }
    }


def document_response(name: str, description: str = "The document.") -> dict[str, Any]:
    """Response that is a contract document."""
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
        "headers": {"ETag": {"description": "Content hash, in quotes.", "schema": {"type": "string"}}},
    }


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=_TAGS
        )
        _, schemas = models_json_schema(
            [(model, "validation") for model in _CONTRACT], ref_template="#/components/schemas/{model}"
        )
        components = document.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in schemas["$defs"].items():
            components.setdefault(name, schema)
        app.openapi_schema = document
    return app.openapi_schema
