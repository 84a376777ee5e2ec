"""Problem documents (RFC 9457): the one form of every error answer."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from api.service.errors import (
    AmbiguousLineage,
    ChangedMeanwhile,
    Forbidden,
    IdentityProviderUnavailable,
    InvalidJson,
    JobFailed,
    NoActivePlan,
    NoDecisions,
    NotActivatable,
    NotFound,
    NotRetryable,
    TooManyJobs,
    TooManyValues,
    Unauthenticated,
    UnknownReference,
    VersionMissing,
)
from planner.schema.errors import InvalidDocument, ShardwrightError
from profiles_db.engine import is_outage

_log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
MAX_TEXT = 2000


class ProblemItem(BaseModel):
    """One thing that is wrong, and where: a JSON path such as `model.calls[3].kind`, or `query.limit`."""

    path: str
    message: str


class Problem(BaseModel):
    """RFC 9457 problem; `code` is stable, `type` names the same as a URI."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    problems: list[ProblemItem] = []


class UnsupportedMediaType(ShardwrightError):
    """The body is not declared to be JSON."""

    code = "unsupported_media_type"


class BodyTooLarge(ShardwrightError):
    """The body is larger than this server accepts."""

    code = "body_too_large"


class ForeignForm(ShardwrightError):
    """A form that none of our own pages of this session made."""

    code = "foreign_form"


_STATUS_OF: dict[type[ShardwrightError], int] = {
    InvalidJson: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    ForeignForm: 403,
    NotFound: 404,
    NoActivePlan: 404,
    AmbiguousLineage: 409,
    NotActivatable: 409,
    NoDecisions: 409,
    NotRetryable: 409,
    ChangedMeanwhile: 412,
    BodyTooLarge: 413,
    TooManyValues: 413,
    UnsupportedMediaType: 415,
    VersionMissing: 428,
    TooManyJobs: 429,
    IdentityProviderUnavailable: 503,
}
_HEADERS_OF: dict[type[ShardwrightError], dict[str, str]] = {
    Unauthenticated: {"WWW-Authenticate": "Bearer"},
    TooManyJobs: {"Retry-After": "5"},
    IdentityProviderUnavailable: {"Retry-After": "5"},
}
_STATUS_OF_FAILURE = {"planner_timeout": 504, "job_cancelled": 409}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 400: "bad_request"}


def problem_response(
    status: int,
    code: str,
    detail: str,
    *,
    problems: Sequence[tuple[str, str]] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """An error answer."""
    problem = Problem(
        type=f"urn:shardwright:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_clipped(detail),
        code=code,
        problems=[ProblemItem(path=_clipped(path), message=_clipped(message)) for path, message in problems],
    )
    return JSONResponse(problem.model_dump(), status, headers=headers, media_type=MEDIA_TYPE)


def _clipped(text: str) -> str:
    """Errors may quote what the caller sent."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def error_response(error: ShardwrightError) -> JSONResponse:
    """The answer to an error that the caller can mend."""
    detail = str(error)
    match error:
        case InvalidDocument(problems=problems):
            return problem_response(422, error.code, detail, problems=problems)
        case JobFailed(code=code, path=path, permanent=permanent):
            status = 422 if permanent else _STATUS_OF_FAILURE.get(code, 500)
            return problem_response(status, code, detail, problems=[(path, detail)] if path is not None else ())
        case UnknownReference(path=path):
            return problem_response(422, error.code, detail, problems=[(path, detail)])
    status, headers = _STATUS_OF.get(type(error), 422), _HEADERS_OF.get(type(error))
    return problem_response(status, error.code, detail, headers=headers)


def failure_of(problem: dict[str, Any]) -> JobFailed:
    """The stored problem of a job as an error."""
    return JobFailed(
        problem["code"],
        problem["message"],
        path=problem.get("path"),
        permanent=problem.get("permanent", False),
    )


def problem_of(request: Request, error: Exception) -> JSONResponse:
    """The answer to any error.

    Raises:
        Exception: `error` itself, where it is a defect of ours.
    """
    match error:
        case ShardwrightError():
            return error_response(error)
        case SQLAlchemyError() if is_outage(error):
            _log.warning("database_away", error=str(error).partition("\n")[0])
            detail = "the database cannot be reached; try again"
            return problem_response(503, "database_unavailable", detail, headers={"Retry-After": "1"})
        case RequestValidationError():
            problems = [(".".join(str(step) for step in item["loc"]), item["msg"]) for item in error.errors()]
            detail = "; ".join(f"{path}: {message}" for path, message in problems)
            return problem_response(422, "invalid_parameter", detail, problems=problems)
        case HTTPException():
            return _http_problem(request, error)
    raise error


def _http_problem(request: Request, error: HTTPException) -> JSONResponse:
    code = _HTTP_CODES.get(error.status_code, f"http_{error.status_code}")
    detail = error.detail
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.url.path} does not take {request.method}"
    return problem_response(error.status_code, code, detail, headers=dict(error.headers or {}))


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of an app with a problem document."""
    for kind in (ShardwrightError, SQLAlchemyError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, problem_of)

    @app.exception_handler(Exception)
    def _internal_error(_request: Request, _error: Exception) -> JSONResponse:
        return internal_error()


def internal_error() -> JSONResponse:
    """The answer to a defect of ours; what it was stays in the log."""
    return problem_response(
        500, "internal_error", "the server failed; its log has the details under the X-Request-ID of this answer"
    )
