"""Entity tags: the content hash in quotes."""

from fastapi import Request, Response


def tagged(request: Request, body: bytes, content_hash: str) -> Response:
    """A JSON answer under its content hash, or 304 when the caller has it already."""
    headers = {"ETag": f'"{content_hash}"', "Cache-Control": "private, no-cache"}
    if _matches(request.headers.get("if-none-match"), content_hash):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _matches(if_none_match: str | None, content_hash: str) -> bool:
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or f'"{content_hash}"' in tags
