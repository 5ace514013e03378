"""From an answer that is not what was asked for to the error that says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet import rest
from meshfleet.client.rest.http_messages import JSON_TYPE
from meshfleet.errors import BodyTooLarge, Fault, ProblemDetails, ServiceRefused, Unavailable
from meshfleet.errors.problems import decode_problem
from meshfleet.errors.protocol import WireError
from meshfleet.rest.operations import NotReadyReply
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE, ProblemReply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.errors import FleetError

_MAX_DETAIL_CHARS: Final = 500
"""Characters of the service's own words in an error."""

_MIN_SECRET_CHARS: Final = 4
"""Characters of what is taken for a secret: shorter words are everywhere."""

_MAX_FAULTS: Final = 100

_PROXY_BODY_LIMIT: Final = (
    "a proxy in front of the service does not take a body of this size;"
    " raise its limit on bodies (client_max_body_size in nginx)"
)
"""The service itself says it as a problem."""

_PROXY_STATUSES: Final = frozenset({408, 413, 429, 500, 502, 503, 504})
"""What proxies say too, in words of their own."""


def decode_error(response: HttpResponse, base_url: str, secrets: Iterable[str] = ()) -> FleetError:
    """The error that the service raised. Where its words repeat one of our secrets stands a `…`."""
    problem = _decode_problem_body(response)
    if problem is not None:
        words = _redact(problem.detail or problem.title or problem.code, secrets)
        faults = tuple(
            Fault(_redact(each.field, secrets), _redact(each.message, secrets))
            for each in problem.errors[:_MAX_FAULTS]
        )
        return decode_problem(
            problem.code, response.status, ProblemDetails(words, faults, response.retry_after)
        )
    if (reasons := _decode_not_ready_reasons(response)) is not None:
        return Unavailable(_redact(reasons, secrets))
    if 300 <= response.status < 400:  # noqa: PLR2004 # as HTTP has it
        return ServiceRefused(f"{base_url} redirects; give the address behind it instead")
    words = f"{base_url} answers with HTTP status {response.status}"
    if response.status == BodyTooLarge.http:
        words += f": {_PROXY_BODY_LIMIT}"
    if response.status in _PROXY_STATUSES:
        return decode_problem("", response.status, ProblemDetails(words, (), response.retry_after))
    return ServiceRefused(f"{words}, and not as a Meshfleet service does")


def _decode_problem_body(response: HttpResponse) -> ProblemReply | None:
    if response.content_type != PROBLEM_MEDIA_TYPE:
        return None
    try:
        return rest.decode_body(ProblemReply, response.body)
    except WireError:
        return None


def _decode_not_ready_reasons(response: HttpResponse) -> str | None:
    """Read why a service is not ready: the one answer that tells of a failure and is no problem."""
    if response.status != Unavailable.http or response.content_type != JSON_TYPE:
        return None
    try:
        return " ".join(each.text for each in rest.decode_body(NotReadyReply, response.body).reasons)
    except WireError:
        return None


def _redact(text: str, secrets: Iterable[str]) -> str:
    """On one line, not too long, and nothing of ours in it, be it before or after the cleaning."""
    mine = [
        form
        for secret in secrets
        for form in (secret, _remove_unprintable(secret))
        if len(form) >= _MIN_SECRET_CHARS
    ]
    return _remove_secrets(_remove_unprintable(_remove_secrets(text, mine)), mine)[:_MAX_DETAIL_CHARS]


def _remove_unprintable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())


def _remove_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
    return text
