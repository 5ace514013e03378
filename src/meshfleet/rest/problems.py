"""Bodies of error responses: RFC 9457 problems with a stable code."""

from __future__ import annotations

from typing import Literal

from meshfleet.rest.bodies import ResponseBody

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FieldProblem(ResponseBody, frozen=True, kw_only=True):
    """Problem of one field."""

    field: str
    message: str


class Problem(ResponseBody, frozen=True, kw_only=True):
    """Error response: a text for people, and the stable `code` for programs (rest-9, rest-10)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: tuple[FieldProblem, ...]


class ProblemSummary(ResponseBody, frozen=True, kw_only=True):
    """Part of a problem of any server that a person reads."""

    title: str | None = None
    detail: str | None = None


class ProblemReply(ProblemSummary, frozen=True, kw_only=True):
    """Part of a problem that a client needs to rebuild the error; other servers may send less than ours."""

    code: str
    errors: tuple[FieldProblem, ...] = ()
