"""Converts error responses of the service, or of a proxy in front of it, to errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet.client.rest.http_messages import JSON_TYPE
from meshfleet.errors import BodyTooLarge, Fault, ProblemDetails, ServiceRefused, Unavailable
from meshfleet.errors.problems import decode_problem
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.inputs import MIN_PASSWORD
from meshfleet.rest.operations import NotReadyReply
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE, ProblemReply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.errors import FleetError

_MAX_DETAIL_CHARS: Final = 500
"""Maximum characters of a service's message that an error message contains."""

_MIN_SECRET_CHARS: Final = MIN_PASSWORD
"""Minimum length of a secret that is redacted. No valid secret is shorter, but ordinary words are."""

_MAX_FAULTS: Final = 100

_PROXY_BODY_LIMIT: Final = (
    "a proxy in front of the service does not accept a body of this size;"
    " raise its limit on bodies (client_max_body_size in nginx)"
)
"""Explanation of an HTTP status 413 that a proxy sent, not the service."""

_PROXY_STATUSES: Final = frozenset({408, 413, 429, 500, 502, 503, 504})
"""HTTP statuses of errors that a proxy in front of the service may send."""


def decode_error(response: HttpResponse, base_url: str, secrets: Iterable[str] = ()) -> FleetError:
    """Build the error for an error response. `secrets` in the error message are replaced by `…`."""
    problem = _decode_problem_body(response)
    if problem is not None:
        text = _redact(problem.detail or problem.title or problem.code, secrets)
        faults = tuple(
            Fault(_redact(fault.field, secrets), _redact(fault.message, secrets))
            for fault in problem.errors[:_MAX_FAULTS]
        )
        return decode_problem(
            problem.code, response.status, ProblemDetails(text, faults, response.retry_after)
        )
    if (reasons := _decode_not_ready_reasons(response)) is not None:
        return Unavailable(_redact(reasons, secrets))
    if 300 <= response.status < 400:  # noqa: PLR2004 # the range of HTTP
        return ServiceRefused(f"{base_url} redirects to another address; use that one as the url")
    text = f"{base_url} responds with HTTP status {response.status}"
    if response.status == BodyTooLarge.http:
        text += f": {_PROXY_BODY_LIMIT}"
    if response.status in _PROXY_STATUSES:
        return decode_problem("", response.status, ProblemDetails(text, (), response.retry_after))
    return ServiceRefused(f"{text}, and not as a Meshfleet service does")


def _decode_problem_body(response: HttpResponse) -> ProblemReply | None:
    if response.content_type != PROBLEM_MEDIA_TYPE:
        return None
    try:
        return decode_body(ProblemReply, response.body)
    except MalformedInput:
        return None


def _decode_not_ready_reasons(response: HttpResponse) -> str | None:
    """Return the reasons in a response of a service that is not ready; None for any other response.

    Such a response is the only error response of the service that is not an RFC 9457 problem.
    """
    if response.status != Unavailable.http or response.content_type != JSON_TYPE:
        return None
    try:
        return " ".join(reason.text for reason in decode_body(NotReadyReply, response.body).reasons)
    except MalformedInput:
        return None


def _redact(text: str, secrets: Iterable[str]) -> str:
    """Return a string without secrets and unprintable characters, cut to `_MAX_DETAIL_CHARS`.

    Secrets are found with and without their unprintable characters.
    """
    forms = [
        form
        for secret in secrets
        for form in (secret, _remove_unprintable(secret))
        if len(form) >= _MIN_SECRET_CHARS
    ]
    return _remove_secrets(_remove_unprintable(_remove_secrets(text, forms)), forms)[:_MAX_DETAIL_CHARS]


def _remove_unprintable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())


def _remove_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
    return text
