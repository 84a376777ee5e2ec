"""Scripts and styles from the package, under addresses that change with their content."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response

from api.service.errors import NotFound

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"
_WORTH_PACKING = 1024

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file, as it is and packed."""

    content: bytes
    packed: bytes
    media_type: str
    digest: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files by their path under `static/`."""
    return dict(_walk(files("api.dashboard") / "static", ""))


def address_of(path: str) -> str:
    """Where a page finds a file; the content is part of the address, so it may be kept for ever."""
    return f"/static/{static_files()[path].digest}/{path}"


@router.get("/static/{digest}/{path:path}")
def get_static(request: Request, digest: str, path: str) -> Response:
    """A file. Under an address of another release the present file is given, not to be kept."""
    file = static_files().get(path)
    if file is None:
        raise NotFound("file", path)
    headers = {
        "ETag": f'"{file.digest}"',
        "Cache-Control": _FOREVER if digest == file.digest else "no-cache",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match", "").removeprefix("W/") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    content = file.content
    if len(content) >= _WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
        content = file.packed
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type=file.media_type, headers=headers)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found = []
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _walk(entry, f"{path}/")
            continue
        media_type = MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            found.append((path, _read(entry, media_type)))
    return found


def _read(entry: Traversable, media_type: str) -> StaticFile:
    content = entry.read_bytes()
    return StaticFile(
        content=content,
        packed=gzip.compress(content, mtime=0),
        media_type=media_type,
        digest=hashlib.sha256(content).hexdigest()[:16],
    )
