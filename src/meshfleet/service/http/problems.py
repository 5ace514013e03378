"""Translates exceptions into HTTP problem responses (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from meshfleet.errors import (
    BodyTooLarge,
    FleetError,
    InvalidRequest,
    NotLoggedIn,
    RangeNotSatisfiable,
    TooManyAttempts,
    Unanswered,
    WrongCredentials,
)
from meshfleet.errors.protocol import MalformedInput
from meshfleet.errors.startup import WrongSettings
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE, FieldProblem, Problem
from meshfleet.service.http.query import list_invalid_query_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar import Request

_log = logging.getLogger(__name__)

_INTERNAL: Final = HTTPStatus.INTERNAL_SERVER_ERROR


def build_problem_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the HTTP problem response for an error. Details of internal errors are only logged (rest-11)."""
    match error:
        case FleetError():
            status, code, detail = error.http, error.code, _public_detail(error)
        case NotFoundException():
            status, code, detail = HTTPStatus.NOT_FOUND, "not-found", "there is no resource at this path"
        case MethodNotAllowedException():
            status, code, detail = (
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "this method is not allowed here",
            )
        case RequestEntityTooLarge():
            status, code, detail = BodyTooLarge.http, BodyTooLarge.code, "the request body is too large"
        case ValidationException():
            return build_problem_response(
                request, InvalidRequest(list_invalid_query_parameters(request, error))
            )
        case HTTPException() if error.status_code < _INTERNAL:
            status, code, detail = error.status_code, "invalid-request", "the request is malformed"
        case _:
            status, code, detail = _INTERNAL, "internal-error", "internal error; see the log of the service"
    path = request.scope["raw_path"].decode("ascii")
    # Unanswered errors are counted where they are raised.
    if status >= _INTERNAL and not isinstance(error, Unanswered):
        _log_failure(error, f"{request.method} {path}: {code}")
    return Response(
        encode_problem(status, code, detail, path, _list_field_problems(error)),
        status_code=status,
        media_type=PROBLEM_MEDIA_TYPE,
        headers=dict(_build_headers(error)),
    )


def encode_problem(
    status: int, code: str, detail: str, instance: str = "", errors: tuple[FieldProblem, ...] = ()
) -> bytes:
    """Encode the body of an HTTP problem response. `instance` is the path of the request."""
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=instance,
        code=code,
        errors=errors,
    )
    return msgspec.json.encode(problem)


def _log_failure(error: Exception, operation: str) -> None:
    """Log a failed request in one line, because health checks may repeat the request often.

    Log an unexpected error with its traceback.
    """
    if isinstance(error, FleetError):
        _log.error("request failed: %s: %s", operation, error)
    else:
        _log.error("request failed: %s", operation, exc_info=error)


def _public_detail(error: FleetError) -> str:
    """Return the error text for REST clients, which is a general text if the error is internal."""
    is_internal = error.http >= _INTERNAL and not isinstance(error, Unanswered)
    return (
        "the service cannot handle this request now; see /readyz and its log" if is_internal else str(error)
    )


def _list_field_problems(error: Exception) -> tuple[FieldProblem, ...]:
    match error:
        case InvalidRequest() | WrongSettings():
            return tuple(FieldProblem(field=field, message=message) for field, message in error.faults)
        case MalformedInput():
            return (FieldProblem(field=error.field, message=error.reason),)
    return ()


def _build_headers(error: Exception) -> Mapping[str, str]:
    match error:
        case NotLoggedIn() | WrongCredentials():
            return {"www-authenticate": "Bearer"}  # rest-13
        case TooManyAttempts():
            return {"retry-after": str(error.retry_after)}  # rest-14
        case RangeNotSatisfiable() if error.size is not None:
            return {"content-range": f"bytes */{error.size}"}
        case MethodNotAllowedException():
            methods = (error.headers or {}).get("allow", "").split(", ")
            extra = ["HEAD"] if "GET" in methods and "HEAD" not in methods else []
            return {"allow": ", ".join([*(each for each in methods if each != "OPTIONS"), *extra])}
    return {}
