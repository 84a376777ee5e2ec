"""Entity tags: the content hash in quotes, or the version of what changes."""

import re

from fastapi import Request, Response

from api.service.errors import VersionMissing


def tagged(request: Request, body: bytes, tag: str) -> Response:
    """A JSON answer under a tag that no other bytes have here, or 304 when the caller has it already."""
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if _matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def version_of(request: Request) -> int:
    """The version that a caller names in `If-Match`, as an ETag gave it out; -1 when it can be none of ours.

    Raises:
        VersionMissing: there is no such header.
    """
    header = request.headers.get("if-match")
    if header is None:
        raise VersionMissing("say in If-Match which version you decided on: the ETag of the lineage")
    found = re.fullmatch(r'"([0-9]{1,9})"', header.strip())
    return int(found[1]) if found else -1


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or f'"{tag}"' in tags
