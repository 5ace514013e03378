"""JSON bodies of error responses of the REST API: RFC 9457 problems with a stable code."""

from __future__ import annotations

from typing import Literal

from meshfleet.rest.bodies import ResponseBody

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FieldProblem(ResponseBody, frozen=True, kw_only=True):
    """Error message for one field of a request."""

    field: str
    message: str


class Problem(ResponseBody, frozen=True, kw_only=True):
    """Error response: sentences for people, and a stable `code` for programs (rest-9, rest-10)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: tuple[FieldProblem, ...]


class ProblemSummary(ResponseBody, frozen=True, kw_only=True):
    """Sentences for people in an error response; any server may have sent it, such as a proxy."""

    title: str | None = None
    detail: str | None = None


class ProblemReply(ProblemSummary, frozen=True, kw_only=True):
    """Fields of an error response from which a client rebuilds the error that the service raised."""

    code: str
    errors: tuple[FieldProblem, ...] = ()
