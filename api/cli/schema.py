"""`shardwright schema`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from planner.schema import Document

DocumentChoice = Literal[
    "model", "cluster", "profile", "workload", "request", "plan", "plan_envelope", "measurement"
]


def schema(
    document: Annotated[DocumentChoice, typer.Argument(metavar="DOCUMENT", help="Which document.")],
) -> None:
    """Print the JSON schema of a document.

    DOCUMENT is model, cluster, profile, workload, request, plan (the hashed body), plan_envelope (what `plan -o`
    writes) or measurement (what a job reports).
    """
    typer.echo(schema_text(documents()[document]), nl=False)


def documents() -> dict[str, type["Document"]]:
    """The documents of the contract by their kind."""
    from planner.schema import (
        ClusterDescription,
        Measurement,
        ModelDescription,
        Plan,
        PlanBody,
        PlanRequest,
        Profile,
        Workload,
    )

    kinds = (ModelDescription, ClusterDescription, Profile, Workload, PlanRequest, PlanBody, Plan, Measurement)
    return {document.kind: document for document in kinds}


def schema_text(document: type["Document"]) -> str:
    """JSON schema (draft 2020-12) of a document, as text."""
    import json

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | document.model_json_schema(), indent=1, sort_keys=True) + "\n"
