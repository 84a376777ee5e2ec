"""`/lineages`: revisions of a plan, why each is there, and which one is active."""

import json
import re
from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.dependencies import AdminViewer, Form, Viewer, page_router
from api.dashboard.rendering import address, page
from api.http.dependencies import ServicesDep
from api.http.lineages.views import Activated, Lineage, Revision
from api.service.callers import Scope
from api.service.lineages import NAME_PATTERN
from api.service.revisions import ID_PATTERN

router = page_router()

Reference = Annotated[str, Path(pattern=f"^({ID_PATTERN}|{NAME_PATTERN})$")]
Cursor = Annotated[str, Query(max_length=500)]


@router.get("/lineages")
def show_lineages(viewer: Viewer, request: Request, services: ServicesDep, cursor: Cursor = "") -> Response:
    """A page of lineages, newest first."""
    found = services.lineages.page(viewer.tenant, name=None, model=None, cursor=cursor or None, limit=50)
    return page(
        request,
        "lineages.html",
        lineages=[Lineage.of(view) for view in found.items],
        next=found.next,
        cursor=cursor,
    )


@router.get("/lineages/{lineage}")
def show_lineage(
    viewer: Viewer,
    request: Request,
    services: ServicesDep,
    lineage: Reference,
    cursor: Cursor = "",
    moves: Cursor = "",
) -> Response:
    """One lineage with its history. `cursor` pages its revisions, `moves` its activations."""
    tenant = viewer.tenant
    shown = Lineage.of(services.lineages.get(tenant, lineage))
    revisions = services.lineages.revisions(tenant, lineage, cursor=cursor or None, limit=50)
    activations = services.lineages.activations(tenant, lineage, cursor=moves or None, limit=20)
    return page(
        request,
        "lineage.html",
        lineage=shown,
        revisions=[Revision.of(row) for row in revisions.items],
        next=revisions.next,
        activations=[Activated.of(row) for row in activations.items],
        next_moves=activations.next,
        state={"cursor": cursor, "moves": moves},
        may_activate=Scope.ADMIN in viewer.scopes,
    )


@router.post("/lineages/{lineage}/activate")
async def activate(viewer: AdminViewer, form: Form, services: ServicesDep, lineage: Reference) -> Response:
    """Make a revision active, as the lineage was when the page was loaded."""
    version, revision = _number(form.get("version", "")), _number(form.get("revision", ""))
    body = json.dumps({"revision": revision, "why": form.get("why", "").strip()}).encode()
    await run_in_threadpool(services.lineages.activate, viewer, lineage, version, body)
    return RedirectResponse(address(f"/lineages/{lineage}", notice="activated"), 303)


def _number(text: str) -> int:
    """A number of ours; -1, which nothing has, for other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
