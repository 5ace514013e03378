"""What an error looks like: RFC 9457, and a stable word of ours."""

from __future__ import annotations

from typing import Literal

from meshfleet.rest.bodies import ResponseBody

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FieldProblem(ResponseBody, frozen=True, kw_only=True):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(ResponseBody, frozen=True, kw_only=True):
    """An error: what went wrong for people, and `code`, a stable word, for programs (rest-9, rest-10)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: tuple[FieldProblem, ...]


class ProblemSummary(ResponseBody, frozen=True, kw_only=True):
    """As much of any server's problem as a person reads."""

    title: str | None = None
    detail: str | None = None


class ProblemReply(ProblemSummary, frozen=True, kw_only=True):
    """As much of a problem as a program needs to know which error it is: others may tell less than we do."""

    code: str
    errors: tuple[FieldProblem, ...] = ()
