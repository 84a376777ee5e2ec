"""Keep and find input documents by their content."""

from dataclasses import dataclass

from api.service.errors import NotFound
from api.service.parsing import parse_document, parse_json
from planner.profiles import refuse_implausible
from planner.schema import Profile
from profiles_db import documents
from profiles_db.engine import Database
from profiles_db.pages import Cursor, Page
from profiles_db.tables import DocumentKind, DocumentRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """What storing a document gave."""

    row: DocumentRow
    is_new: bool


class DocumentService:
    """Models, clusters and profiles; each kept once for a tenant, under its content hash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, tenant: str, kind: DocumentKind, body: bytes) -> StoredDocument:
        """Store the JSON of a document.

        Raises:
            InvalidJson, InvalidDocument: the body is not a document of this kind.
            ImplausibleProfile: it is a profile with a number that cannot be true.
        """
        document = parse_document(documents.DOCUMENT_TYPES[kind], parse_json(body))
        if isinstance(document, Profile):
            refuse_implausible(document)
        with self._database.write() as session:
            content_hash, is_new = documents.put(session, tenant, document)
            row = documents.get_row(session, tenant, kind, content_hash)
        assert row is not None
        return StoredDocument(row=row, is_new=is_new)

    def get(self, tenant: str, kind: DocumentKind, content_hash: str) -> bytes:
        """Canonical JSON of a document.

        Raises:
            NotFound: no such document of this kind.
        """
        with self._database.read() as session:
            body = documents.get_bytes(session, tenant, kind, content_hash)
        if body is None:
            raise NotFound(kind, content_hash)
        return body

    def require(self, tenant: str, kind: DocumentKind, content_hash: str) -> None:
        """Whether there is such a document, without reading it; errors of `get`."""
        with self._database.read() as session:
            if not documents.is_stored(session, tenant, kind, content_hash):
                raise NotFound(kind, content_hash)

    def page(self, tenant: str, kind: DocumentKind, *, cursor: str | None, limit: int) -> Page[DocumentRow]:
        """Documents of a kind, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        after = Cursor.of(cursor)
        with self._database.read() as session:
            return documents.page(session, tenant, kind, cursor=after, limit=limit)

    def names(self, tenant: str, kind: DocumentKind, *, limit: int) -> list[str]:
        """Names of documents of a kind in alphabetical order, each once, the first `limit`."""
        with self._database.read() as session:
            return documents.names_of_kind(session, tenant, kind, limit=limit)
