"""Whether and when to ask once more. Nothing here asks, or waits."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unanswered

if TYPE_CHECKING:
    from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
    from meshfleet.errors import FleetError

MAX_TRIES: Final = 5
"""Of one call, all together."""

_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = 8.0
"""Seconds up to which we wait before the second try, and before any other."""

_MAX_RETRY_AFTER_SECONDS: Final = 10
"""Seconds that a service may ask us to wait; who wants more is told so."""

_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Statuses that may be others in a moment."""


def compute_backoff(tries: int) -> float:
    """Seconds to wait after so many tries: up to a limit that doubles, so that nobody comes in step."""
    return uniform(0, min(_FIRST_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_PAUSE_SECONDS))  # noqa: S311 # spreads load, guards nothing


def decide_retry_after_loss(request: HttpRequest, loss: ServiceUnreachable, tries: int) -> float | None:
    """Seconds until the next try after no answer came; None: there is none.

    What may have arrived is said again only if that does no harm. Who waited for all their time is not made
    to wait as long again; who was not reached in half of it is tried once more.
    """
    most = MAX_TRIES if not loss.is_timeout else 1 if loss.was_sent else 2
    if tries >= most or (loss.was_sent and not request.is_repeatable):
        return None
    return compute_backoff(tries)


def decide_retry_after_error(
    request: HttpRequest, response: HttpResponse, error: FleetError, tries: int
) -> float | None:
    """Seconds until the next try after an answer that was an error; None: there is none.

    That a gateway did not answer is an answer of the service, which will not change by asking again.
    """
    if tries >= MAX_TRIES or not request.is_repeatable or response.status not in _TRANSIENT_STATUSES:
        return None
    if isinstance(error, Unanswered):
        return None
    asked = error.retry_after if isinstance(error, TooManyAttempts) else response.retry_after
    if asked is None:
        return compute_backoff(tries)
    return None if asked > _MAX_RETRY_AFTER_SECONDS else asked + compute_backoff(1)
