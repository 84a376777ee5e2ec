"""`/v1/lineages`: revisions of plans, their history, and the active one."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from api.http.body import with_body
from api.http.dependencies import (
    EXAMPLE_HASH,
    SHA256_PATTERN,
    Admin,
    CursorParameter,
    JsonBody,
    Limit,
    Planner,
    Reader,
    ServicesDep,
)
from api.http.etags import tagged, version_of
from api.http.lineages.views import (
    Activated,
    ActivationPage,
    Lineage,
    LineagePage,
    Revision,
    RevisionPage,
    RevisionsCompared,
)
from api.http.openapi import NOT_CHANGED, PROBLEM_RESPONSES, document_body, document_response
from api.service.lineages import NAME_PATTERN, LineageView
from api.service.revisions import ID_PATTERN

router = APIRouter(prefix="/v1/lineages", tags=["lineages"])

Reference = Annotated[
    str,
    Path(
        pattern=f"^({ID_PATTERN}|{NAME_PATTERN})$",
        description="Identity of a lineage, or its name where only one has it.",
        examples=["llama-70b-pretraining"],
    ),
]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a revision.")]
NumberParameter = Annotated[int, Query(ge=1, le=2**31 - 1, description="Number of a revision.")]
Fingerprint = Annotated[
    str | None, Query(pattern=SHA256_PATTERN, description="Only lineages of this module (its fingerprint).")
]
Name = Annotated[str | None, Query(pattern=f"^{NAME_PATTERN}$", description="Only lineages of this name.")]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="Required: ETag of the lineage, as it was when you decided.")
]
NEW_REVISION: dict[str, Any] = {"name": "llama-70b-pretraining", "plan": EXAMPLE_HASH, "why": "longer sequences"}
ACTIVATION: dict[str, Any] = {"revision": 3, "why": "revision 4 is slower on the new switches"}


def _tagged(view: LineageView, status: int = 200) -> Response:
    shown = Lineage.of(view)
    headers = {"ETag": f'"{shown.version}"', "Cache-Control": "private, no-cache"}
    if status == 201:
        headers["Location"] = shown.links["self"]
    return JSONResponse(shown.model_dump(mode="json"), status, headers=headers)


@router.post(
    "",
    summary="Add a revision to a lineage",
    operation_id="create_revision",
    status_code=201,
    response_model=Lineage,
    responses={200: {"model": Lineage, "description": "It is the newest one already."}, **PROBLEM_RESPONSES},
    openapi_extra=document_body("NewRevision", examples={"revision": NEW_REVISION}),
)
async def create_revision(caller: Planner, services: ServicesDep, request: Request, body: JsonBody) -> Response:
    """A stored plan becomes the newest revision of the lineage with this name, its module and its training; the
    first one makes the lineage. Only the first plan that fits becomes active by that.
    """
    view, is_new = await with_body(request, services.lineages.add, caller, body)
    return _tagged(view, 201 if is_new else 200)


@router.get("", summary="List lineages", response_model=LineagePage, responses=PROBLEM_RESPONSES)
def list_lineages(
    caller: Reader,
    services: ServicesDep,
    name: Name = None,
    model: Fingerprint = None,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first; `next` of a page is the `cursor` of the one after it."""
    page = services.lineages.page(caller.tenant, name=name, model=model, cursor=cursor, limit=limit)
    return LineagePage(items=[Lineage.of(view) for view in page.items], next=page.next)


@router.get("/{lineage}", summary="Get a lineage", response_model=Lineage, responses=PROBLEM_RESPONSES)
def get_lineage(caller: Reader, services: ServicesDep, lineage: Reference) -> Response:
    """Newest and active revision; the ETag is its version, which activations have to name."""
    return _tagged(services.lineages.get(caller.tenant, lineage))


@router.get(
    "/{lineage}/active",
    summary="Get the active plan",
    response_class=Response,
    responses={200: document_response("Plan"), 304: NOT_CHANGED, **PROBLEM_RESPONSES},
)
def get_active_plan(
    caller: Reader, services: ServicesDep, request: Request, lineage: Reference, model: Fingerprint = None
) -> Response:
    """What a launcher asks for. The envelope names lineage and revision, and why the revision exists."""
    plan = services.lineages.active(caller.tenant, lineage, model)
    response = tagged(request, services.lineages.tag(plan), lambda: services.lineages.plan_of(caller.tenant, plan))
    response.headers["Content-Location"] = f"/v1/plans/{plan.plan_id}"
    return response


@router.put(
    "/{lineage}/active",
    summary="Activate a revision",
    operation_id="activate_revision",
    response_model=Lineage,
    responses=PROBLEM_RESPONSES,
    openapi_extra=document_body("Activation", examples={"rollback": ACTIVATION}),
)
async def activate_revision(
    caller: Admin,
    services: ServicesDep,
    request: Request,
    lineage: Reference,
    body: JsonBody,
    _if_match: IfMatch = None,
) -> Response:
    """Rolling back is activating an earlier revision. 412 when the lineage was changed since the caller saw it."""
    version = version_of(request)
    return _tagged(await with_body(request, services.lineages.activate, caller, lineage, version, body))


@router.get(
    "/{lineage}/revisions", summary="List revisions", response_model=RevisionPage, responses=PROBLEM_RESPONSES
)
def list_revisions(
    caller: Reader,
    services: ServicesDep,
    lineage: Reference,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first, each with what had changed."""
    page = services.lineages.revisions(caller.tenant, lineage, cursor=cursor, limit=limit)
    return RevisionPage(items=[Revision.of(row) for row in page.items], next=page.next)


@router.get(
    "/{lineage}/revisions/{revision}",
    summary="Get a revision",
    response_model=Revision,
    responses=PROBLEM_RESPONSES,
)
def get_revision(caller: Reader, services: ServicesDep, lineage: Reference, revision: Number) -> Any:  # noqa: ANN401
    """Which plan it is, and why it exists."""
    return Revision.of(services.lineages.revision(caller.tenant, lineage, revision))


@router.get(
    "/{lineage}/activations",
    summary="List activations",
    response_model=ActivationPage,
    responses=PROBLEM_RESPONSES,
)
def list_activations(
    caller: Reader,
    services: ServicesDep,
    lineage: Reference,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Who made which revision active, when and why; newest first."""
    page = services.lineages.activations(caller.tenant, lineage, cursor=cursor, limit=limit)
    return ActivationPage(items=[Activated.of(row) for row in page.items], next=page.next)


@router.get(
    "/{lineage}/difference",
    summary="Compare two revisions",
    response_model=RevisionsCompared,
    responses=PROBLEM_RESPONSES,
)
def compare_revisions(
    caller: Reader, services: ServicesDep, lineage: Reference, before: NumberParameter, after: NumberParameter
) -> Any:  # noqa: ANN401
    """Inputs, decisions and predictions that differ, in words and numbers."""
    return RevisionsCompared.of(services.lineages.difference(caller.tenant, lineage, before, after))
