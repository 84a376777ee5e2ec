"""Plan requests of a tenant: the documents by hash, the rest as compressed JSON."""

import json
import zlib
from typing import Any

from sqlalchemy.orm import Session

from planner.schema import ClusterDescription, ModelDescription, PlanRequest, Profile
from profiles_db import documents
from profiles_db.insert import insert_if_absent
from profiles_db.tables import DocumentKind, RequestRow, now_us

_APART = {"model", "cluster", "profile"}


def put(session: Session, tenant: str, request: PlanRequest, request_hash: str) -> None:
    """Store a request and its documents once, under the hash of the request."""
    model_hash, _ = documents.put(session, tenant, request.model)
    cluster_hash, _ = documents.put(session, tenant, request.cluster)
    profile_hash = documents.put(session, tenant, request.profile)[0] if request.profile is not None else None
    rest = request.model_dump_json(exclude=_APART, exclude_defaults=True)
    values = {
        "tenant": tenant,
        "request_hash": request_hash,
        "model_hash": model_hash,
        "cluster_hash": cluster_hash,
        "profile_hash": profile_hash,
        "created_at_us": now_us(),
        "rest": zlib.compress(rest.encode()),
    }
    insert_if_absent(session, RequestRow, values)


def get(session: Session, tenant: str, request_hash: str) -> PlanRequest | None:
    """A request with its documents."""
    row = session.get(RequestRow, (tenant, request_hash))
    if row is None:
        return None
    fields = json.loads(zlib.decompress(row.rest))
    fields["model"] = _load(session, tenant, DocumentKind.MODEL, row.model_hash, ModelDescription)
    fields["cluster"] = _load(session, tenant, DocumentKind.CLUSTER, row.cluster_hash, ClusterDescription)
    if row.profile_hash is not None:
        fields["profile"] = _load(session, tenant, DocumentKind.PROFILE, row.profile_hash, Profile)
    return PlanRequest.from_object(fields, source=f"stored request {request_hash}")


def _load(
    session: Session,
    tenant: str,
    kind: DocumentKind,
    content_hash: str,
    document_type: type[documents.StoredDocument],
) -> documents.StoredDocument:
    body = documents.get_bytes(session, tenant, kind, content_hash)
    assert body is not None, "foreign keys keep the documents of a request"
    return document_type.from_json(body, source=f"stored {kind} {content_hash}")


def fields(session: Session, tenant: str, request_hash: str) -> tuple[RequestRow, dict[str, Any]]:
    """A stored request without its documents: their hashes, and its other fields that are not defaults."""
    row = session.get(RequestRow, (tenant, request_hash))
    assert row is not None, "foreign keys keep the requests of plans"
    return row, json.loads(zlib.decompress(row.rest))


def names(session: Session, tenant: str, request_hash: str) -> tuple[str, str]:
    """Names of the model and the cluster of a stored request."""
    row = session.get(RequestRow, (tenant, request_hash))
    assert row is not None, "foreign keys keep the requests of jobs"
    found = documents.names(session, tenant, (row.model_hash, row.cluster_hash))
    return found[row.model_hash], found[row.cluster_hash]
