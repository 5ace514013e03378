"""From an answer that is not what was asked for to the error that says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet.client.rest.calls import JSON
from meshfleet.errors import BodyTooLarge, Fault, ServiceRefused, Told, Unavailable, WireError
from meshfleet.errors.told import error_of
from meshfleet.wire import rest
from meshfleet.wire.rest.operations import NotReadyReply
from meshfleet.wire.rest.problems import MEDIA_TYPE, ToldProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client.rest.calls import Answer
    from meshfleet.errors import FleetError

_SHOWN: Final = 500
"""Characters of the service's own words in an error."""

_SHORTEST: Final = 4
"""Characters of what is taken for a secret: shorter words are everywhere."""

_FAULTS: Final = 100

_TOO_LARGE: Final = (
    "a proxy in front of the service does not take a body of this size;"
    " raise its limit on bodies (client_max_body_size in nginx)"
)
"""The service itself says it as a problem."""

_PASSED_ON: Final = frozenset({408, 413, 429, 500, 502, 503, 504})
"""What proxies say too, in words of their own."""


def error_in(answer: Answer, place: str, secrets: Iterable[str] = ()) -> FleetError:
    """The error that the service raised. Where its words repeat one of our secrets stands a `…`."""
    problem = _problem(answer)
    if problem is not None:
        words = _clean(problem.detail or problem.title or problem.code, secrets)
        faults = tuple(
            Fault(_clean(each.field, secrets), _clean(each.message, secrets))
            for each in problem.errors[:_FAULTS]
        )
        return error_of(problem.code, answer.status, Told(words, faults, answer.retry_after))
    if (reasons := _reasons(answer)) is not None:
        return Unavailable(_clean(reasons, secrets))
    if 300 <= answer.status < 400:  # noqa: PLR2004 # as HTTP has it
        return ServiceRefused(f"{place} redirects; give the address behind it instead")
    words = f"{place} answers with HTTP status {answer.status}"
    if answer.status == BodyTooLarge.http:
        words += f": {_TOO_LARGE}"
    if answer.status in _PASSED_ON:
        return error_of("", answer.status, Told(words, (), answer.retry_after))
    return ServiceRefused(f"{words}, and not as a Meshfleet service does")


def _problem(answer: Answer) -> ToldProblem | None:
    if answer.content_type != MEDIA_TYPE:
        return None
    try:
        return rest.decode(ToldProblem, answer.body)
    except WireError:
        return None


def _reasons(answer: Answer) -> str | None:
    """Read why a service is not ready: the one answer that tells of a failure and is no problem."""
    if answer.status != Unavailable.http or answer.content_type != JSON:
        return None
    try:
        return " ".join(each.text for each in rest.decode(NotReadyReply, answer.body).reasons)
    except WireError:
        return None


def _clean(text: str, secrets: Iterable[str]) -> str:
    """On one line, not too long, and nothing of ours in it, be it before or after the cleaning."""
    mine = [form for secret in secrets for form in (secret, _printable(secret)) if len(form) >= _SHORTEST]
    return _without(_printable(_without(text, mine)), mine)[:_SHOWN]


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
    return text
