"""Content-addressed documents of a tenant: models, clusters and profiles."""

import zlib
from collections.abc import Iterable

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, undefer

from planner.schema import ClusterDescription, ModelDescription, Profile
from profiles_db import profiled
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, newest_first, page_of
from profiles_db.tables import DocumentKind, DocumentRow, now_us

StoredDocument = ModelDescription | ClusterDescription | Profile

DOCUMENT_TYPES: dict[DocumentKind, type[StoredDocument]] = {
    DocumentKind.MODEL: ModelDescription,
    DocumentKind.CLUSTER: ClusterDescription,
    DocumentKind.PROFILE: Profile,
}


def put(session: Session, tenant: str, document: StoredDocument) -> tuple[str, bool]:
    """Store a document once; returns its hash and whether it is new."""
    body = document.canonical_bytes()
    content_hash = document.content_hash()
    values = {
        "tenant": tenant,
        "content_hash": content_hash,
        "kind": DocumentKind(document.kind),
        "name": document.name,
        "size_bytes": len(body),
        "created_at_us": now_us(),
        "body": zlib.compress(body),
    }
    is_new = insert_if_absent(session, DocumentRow, values)
    if is_new and isinstance(document, Profile):
        profiled.add(session, tenant, content_hash, document)
    return content_hash, is_new


def get_bytes(session: Session, tenant: str, kind: DocumentKind, content_hash: str) -> bytes | None:
    """Canonical JSON of a document; None when it is not stored as that kind."""
    body = session.scalar(select(DocumentRow.body).where(*_is(tenant, kind, content_hash)))
    return None if body is None else zlib.decompress(body)


def bodies(session: Session, tenant: str, hashes: Iterable[str]) -> dict[str, bytes]:
    """Canonical JSON of documents by their hash."""
    query = select(DocumentRow.content_hash, DocumentRow.body)
    chosen = query.where(DocumentRow.tenant == tenant, DocumentRow.content_hash.in_(set(hashes)))
    return {content_hash: zlib.decompress(body) for content_hash, body in session.execute(chosen)}


def is_stored(session: Session, tenant: str, kind: DocumentKind, content_hash: str) -> bool:
    """Whether a document is stored as that kind."""
    return session.scalar(select(DocumentRow.content_hash).where(*_is(tenant, kind, content_hash))) is not None


def get_row(session: Session, tenant: str, kind: DocumentKind, content_hash: str) -> DocumentRow | None:
    """The row with its body."""
    query = select(DocumentRow).where(*_is(tenant, kind, content_hash))
    return session.scalar(query.options(undefer(DocumentRow.body)))


def page(
    session: Session, tenant: str, kind: DocumentKind, *, cursor: Cursor | None = None, limit: int = 50
) -> Page[DocumentRow]:
    """Documents of a kind, newest first, without their bodies."""
    query = select(DocumentRow).where(DocumentRow.tenant == tenant, DocumentRow.kind == kind)
    rows = session.scalars(
        newest_first(query, DocumentRow.created_at_us, DocumentRow.content_hash, cursor=cursor, limit=limit)
    ).all()
    return page_of(rows, "content_hash", limit=limit)


def names(session: Session, tenant: str, hashes: Iterable[str]) -> dict[str, str]:
    """Names of documents by their hash."""
    query = select(DocumentRow.content_hash, DocumentRow.name)
    chosen = query.where(DocumentRow.tenant == tenant, DocumentRow.content_hash.in_(set(hashes)))
    return dict(session.execute(chosen).all())


def named(tenant: str, kind: DocumentKind, name: str) -> Select[str]:
    """Hashes of documents of a name, for a condition."""
    return select(DocumentRow.content_hash).where(
        DocumentRow.tenant == tenant, DocumentRow.kind == kind, DocumentRow.name == name
    )


def names_of_kind(session: Session, tenant: str, kind: DocumentKind, *, after: str = "", limit: int) -> list[str]:
    """Names of documents in alphabetical order, each once."""
    query = select(DocumentRow.name).where(
        DocumentRow.tenant == tenant, DocumentRow.kind == kind, DocumentRow.name > after
    )
    return list(session.scalars(query.distinct().order_by(DocumentRow.name).limit(limit)))


def _is(tenant: str, kind: DocumentKind, content_hash: str) -> tuple[ColumnElement[bool], ...]:
    return (
        DocumentRow.tenant == tenant,
        DocumentRow.content_hash == content_hash,
        DocumentRow.kind == kind,
    )
