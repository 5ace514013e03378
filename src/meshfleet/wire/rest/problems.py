"""What an error looks like: RFC 9457, and a stable word of ours."""

from __future__ import annotations

from meshfleet.wire.rest.bodies import Body

MEDIA_TYPE = "application/problem+json"


class FieldProblem(Body, frozen=True, kw_only=True):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(Body, frozen=True, kw_only=True):
    """An error (rest-9, rest-10). Of other servers we take what they say."""

    type: str = "about:blank"
    title: str | None = None
    status: int | None = None
    detail: str | None = None
    instance: str | None = None
    code: str | None = None
    errors: tuple[FieldProblem, ...] = ()
