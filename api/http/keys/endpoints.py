"""`/v1/keys`: API keys of the caller's tenant."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from api.http.body import with_body
from api.http.dependencies import Admin, JsonBody, ServicesDep, timestamp
from api.http.openapi import PROBLEM_RESPONSES, document_body
from api.service.callers import Scope
from api.service.keys import NewKey, Rotation
from api.service.parsing import parse_document, parse_json
from profiles_db.tables import KeyRow

router = APIRouter(prefix="/v1/keys", tags=["keys"])

KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", examples=["5f0c1d2e3a4b5c6d"])]
NEW_KEY: dict[str, Any] = {"name": "launcher of team a", "scopes": ["plan"], "expires_in_s": 7_776_000}
ROTATION: dict[str, Any] = {"keep_old_s": 86_400}


class Key(BaseModel):
    """An API key, without its secret."""

    key_id: str
    tenant: str
    name: str
    scopes: list[Scope]
    created_at: str
    rotated_at: str | None
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    """To the minute."""
    links: dict[str, str]

    @classmethod
    def fields_of(cls, row: KeyRow) -> dict[str, Any]:
        """What a row shows."""
        return {
            "key_id": row.key_id,
            "tenant": row.tenant,
            "name": row.name,
            "scopes": [Scope(scope) for scope in row.scopes.split()],
            "created_at": timestamp(row.created_at_us),
            "rotated_at": _optional(row.rotated_at_us),
            "expires_at": _optional(row.expires_at_us),
            "revoked_at": _optional(row.revoked_at_us),
            "last_used_at": _optional(row.last_used_at_us),
            "links": {"self": f"/v1/keys/{row.key_id}"},
        }


class IssuedKey(Key):
    """A key with its secret. It is shown this once; only its hash is kept."""

    token: str


class KeyList(BaseModel):
    """Keys, newest first, ended ones too."""

    items: list[Key]


def _optional(at_us: int | None) -> str | None:
    return None if at_us is None else timestamp(at_us)


@router.post(
    "",
    summary="Make an API key",
    operation_id="create_key",
    status_code=201,
    response_model=IssuedKey,
    responses=PROBLEM_RESPONSES,
    openapi_extra=document_body("NewKey", examples={"key": NEW_KEY}),
)
async def create_key(
    caller: Admin, services: ServicesDep, request: Request, body: JsonBody, response: Response
) -> Any:  # noqa: ANN401
    """The first key of a server ends its time without authentication: from then on everyone needs one."""

    def create() -> IssuedKey:
        issued = services.keys.create(caller.tenant, parse_document(NewKey, parse_json(body)))
        return IssuedKey(token=issued.token, **Key.fields_of(issued.row))

    key = await with_body(request, create)
    response.headers["Location"] = key.links["self"]
    response.headers["Cache-Control"] = "no-store"
    return key


@router.get("", summary="List API keys", response_model=KeyList, responses=PROBLEM_RESPONSES)
def list_keys(caller: Admin, services: ServicesDep) -> Any:  # noqa: ANN401
    """Names, scopes and times; secrets are not kept."""
    return KeyList(items=[Key(**Key.fields_of(row)) for row in services.keys.of_tenant(caller.tenant)])


@router.post(
    "/{key_id}/rotate",
    summary="Give a key a new secret",
    operation_id="rotate_key",
    response_model=IssuedKey,
    responses=PROBLEM_RESPONSES,
    openapi_extra=document_body("Rotation", examples={"rotation": ROTATION}),
)
async def rotate_key(
    caller: Admin, services: ServicesDep, request: Request, key_id: KeyId, body: JsonBody, response: Response
) -> Any:  # noqa: ANN401
    """The old secret is accepted for `keep_old_s` seconds more. Identity, scopes and limits stay."""

    def rotate() -> IssuedKey:
        issued = services.keys.rotate(caller.tenant, key_id, parse_document(Rotation, parse_json(body)))
        return IssuedKey(token=issued.token, **Key.fields_of(issued.row))

    response.headers["Cache-Control"] = "no-store"
    return await with_body(request, rotate)


@router.delete("/{key_id}", summary="Revoke a key", status_code=204, responses=PROBLEM_RESPONSES)
def revoke_key(caller: Admin, services: ServicesDep, key_id: KeyId) -> Response:
    """It is refused from now on; what it made stays."""
    services.keys.revoke(caller.tenant, key_id)
    return Response(status_code=204)
