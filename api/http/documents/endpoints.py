"""`/v1/models`, `/v1/clusters`, `/v1/profiles`: the same three operations for each kind."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from api.http.body import with_body
from api.http.dependencies import (
    ContentHash,
    CursorParameter,
    JsonBody,
    Limit,
    Planner,
    Reader,
    ServicesDep,
    timestamp,
)
from api.http.etags import tagged
from api.http.examples import DOCUMENTS
from api.http.openapi import NOT_CHANGED, PROBLEM_RESPONSES, document_body, document_response
from profiles_db.documents import DOCUMENT_TYPES
from profiles_db.tables import DocumentKind, DocumentRow


class DocumentSummary(BaseModel):
    """A stored document, without its content."""

    content_hash: str
    kind: DocumentKind
    name: str
    size_bytes: int
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, row: DocumentRow) -> "DocumentSummary":
        """Show a row."""
        return cls(
            content_hash=row.content_hash,
            kind=DocumentKind(row.kind),
            name=row.name,
            size_bytes=row.size_bytes,
            created_at=timestamp(row.created_at_us),
            links={"self": f"/v1/{row.kind}s/{row.content_hash}"},
        )


class DocumentPage(BaseModel):
    """Documents, newest first; `next` is the cursor of the next page."""

    items: list[DocumentSummary]
    next: str | None


def document_router(kind: DocumentKind) -> APIRouter:
    """Endpoints of one kind of document."""
    router = APIRouter(prefix=f"/v1/{kind}s", tags=[f"{kind}s"])
    document_type = DOCUMENT_TYPES[kind]

    @router.post(
        "",
        summary=f"Store a {kind}",
        operation_id=f"create_{kind}",
        status_code=201,
        response_model=DocumentSummary,
        responses={200: {"model": DocumentSummary, "description": "It was stored already."}, **PROBLEM_RESPONSES},
        openapi_extra=document_body(document_type.__name__, examples={kind.value: DOCUMENTS[kind]}),
    )
    async def create(
        caller: Planner, services: ServicesDep, request: Request, body: JsonBody, response: Response
    ) -> Any:  # noqa: ANN401
        """Store a document under its content hash. The same content again is no error and changes nothing."""
        stored = await with_body(request, services.documents.put, caller.tenant, kind, body)
        summary = DocumentSummary.of(stored.row)
        response.status_code = 201 if stored.is_new else 200
        response.headers["Location"] = summary.links["self"]
        return summary

    @router.get(
        "",
        summary=f"List {kind}s",
        operation_id=f"list_{kind}s",
        response_model=DocumentPage,
        responses=PROBLEM_RESPONSES,
    )
    def list_page(caller: Reader, services: ServicesDep, cursor: CursorParameter = None, limit: Limit = 50) -> Any:  # noqa: ANN401
        """Newest first; `next` of a page is the `cursor` of the one after it."""
        page = services.documents.page(caller.tenant, kind, cursor=cursor, limit=limit)
        return DocumentPage(items=[DocumentSummary.of(row) for row in page.items], next=page.next)

    @router.get(
        "/{content_hash}",
        summary=f"Get a {kind}",
        operation_id=f"get_{kind}",
        response_class=Response,
        responses={200: document_response(document_type.__name__), 304: NOT_CHANGED, **PROBLEM_RESPONSES},
    )
    def get(caller: Reader, services: ServicesDep, request: Request, content_hash: ContentHash) -> Response:
        """The document as canonical JSON (RFC 8785): fields that equal their defaults are left out."""
        named = (caller.tenant, kind, content_hash)
        return tagged(
            request,
            content_hash,
            lambda: services.documents.get(*named),
            lambda: services.documents.require(*named),
        )

    return router
