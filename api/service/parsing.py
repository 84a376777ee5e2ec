"""From bytes to documents: JSON first, then the contract, then the canonical form that identities need."""

import re
from typing import Any, TypeVar

import rfc8785
from pydantic import ValidationError
from pydantic_core import from_json

from api.service.errors import InvalidJson, TooManyValues
from planner.schema.base import Document
from planner.schema.errors import InvalidDocument

AnyDocument = TypeVar("AnyDocument", bound=Document)

MAX_VALUES = 1_000_000
"""Values in one body; parsed, they take many times the memory of their text. Every comma counts as one."""
MAX_PROBLEMS = 200
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def parse_json(body: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
    """Parse strict JSON: UTF-8, no NaN, bounded nesting.

    Raises:
        InvalidJson: the body is not that.
        TooManyValues: it is, or may be, but would take too much memory.
    """
    if body.count(b",") >= MAX_VALUES:
        raise TooManyValues(f"the body may have at most {MAX_VALUES} values")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None


def parse_document(kind: type[AnyDocument], value: Any) -> AnyDocument:  # noqa: ANN401 - JSON of any shape
    """Check parsed JSON against the contract.

    Raises:
        InvalidDocument: a field is missing, unknown or out of range, or a number has no exact canonical form.
    """
    document = _validated(kind, value)
    try:
        canonical = document.canonical_bytes()
    except (rfc8785.CanonicalizationError, OverflowError) as error:
        message = f"has no canonical JSON form (RFC 8785): {error}"
        raise InvalidDocument(f"the body {message}", problems=(("", message),)) from None
    path = _path_of_nul(document.model_dump(mode="json")) if rb"\u0000" in canonical else None
    if path is not None:
        raise InvalidDocument(f"{path} contains the character NUL", problems=((path, "must not contain NUL"),))
    return document


def _validated(kind: type[AnyDocument], value: Any) -> AnyDocument:  # noqa: ANN401 - JSON of any shape
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > MAX_PROBLEMS:
            message = f"{error.error_count()} problems, too many to list; is it a {kind.kind} at all?"
            raise InvalidDocument(message, problems=(("", message),)) from None
        raise InvalidDocument.from_pydantic(error, kind=kind.kind, source="the body") from None


def _path_of_nul(value: Any, path: str = "") -> str | None:  # noqa: ANN401 - JSON of any shape
    """Where NUL is; databases cannot keep it in text."""
    match value:
        case str():
            return path if "\x00" in value else None
        case dict():
            if any("\x00" in name for name in value):
                return path
            inner = ((child, f"{path}.{name}" if path else name) for name, child in value.items())
        case list():
            inner = ((child, f"{path}[{index}]") for index, child in enumerate(value))
        case _:
            return None
    return next((found for child, place in inner if (found := _path_of_nul(child, place)) is not None), None)
