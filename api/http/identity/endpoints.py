"""`/v1/whoami`."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from api.http.dependencies import Reader
from api.http.openapi import PROBLEM_RESPONSES
from api.service.callers import Scope

router = APIRouter(prefix="/v1", tags=["keys"])


class Identity(BaseModel):
    """The caller as the server knows it."""

    tenant: str
    name: str
    scopes: list[Scope]


@router.get("/whoami", summary="Who am I", response_model=Identity, responses=PROBLEM_RESPONSES)
def whoami(caller: Reader) -> Any:  # noqa: ANN401
    """Tenant, name and scopes of the key or token that was sent."""
    return Identity(tenant=caller.tenant, name=caller.name, scopes=[s for s in Scope if s in caller.scopes])
