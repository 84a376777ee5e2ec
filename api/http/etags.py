"""Entity tags: the content hash in quotes, or the version of what changes."""

import re
from collections.abc import Callable

from fastapi import Request, Response

from api.service.errors import VersionMissing


def tagged(
    request: Request, tag: str, load: Callable[[], bytes], require: Callable[[], None] = lambda: None
) -> Response:
    """A JSON answer under a tag that no other bytes have here, or 304 when the caller has it already.

    Args:
        request: What was asked.
        tag: Names the bytes.
        load: Gives the bytes; not called for a 304.
        require: Called instead, to say whether there is still such a thing.
    """
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if _matches(request.headers.get("if-none-match"), tag):
        require()
        return Response(status_code=304, headers=headers)
    return Response(load(), headers=headers, media_type="application/json")


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
