"""Decides whether and when to repeat a request. Nothing here sends or waits."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unanswered

if TYPE_CHECKING:
    from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
    from meshfleet.errors import FleetError

MAX_TRIES: Final = 5
"""Maximum number of attempts for one call, including the first."""

_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = 8.0
"""Maximum seconds before any attempt; before the second attempt it is `_FIRST_PAUSE_SECONDS`."""

_MAX_RETRY_AFTER_SECONDS: Final = 10
"""Maximum Retry-After in seconds for which the client waits; if it is longer, the error is raised."""

_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses of temporary errors."""


def compute_backoff(tries: int) -> float:
    """Return the seconds to wait after `tries` attempts: random, up to a limit that doubles each time.

    The random time prevents that many clients retry at the same time.
    """
    return uniform(0, min(_FIRST_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_PAUSE_SECONDS))  # noqa: S311 # jitter, not cryptography


def decide_retry_after_loss(request: HttpRequest, loss: ServiceUnreachable, tries: int) -> float | None:
    """Return the seconds until the next attempt if no response arrived; None if there is no retry.

    A request that may have arrived is repeated only if it is repeatable. After a timeout waiting for the
    response there is no retry; after a connect timeout, which is half as long, there is one.
    """
    max_tries = MAX_TRIES if not loss.is_timeout else 1 if loss.was_sent else 2
    if tries >= max_tries or (loss.was_sent and not request.is_repeatable):
        return None
    return compute_backoff(tries)


def decide_retry_after_error(
    request: HttpRequest, response: HttpResponse, error: FleetError, tries: int
) -> float | None:
    """Return the seconds until the next attempt after an error response; None if there is no retry.

    After `Unanswered` there is no retry, as the service has already waited for the gateway.
    """
    if tries >= MAX_TRIES or not request.is_repeatable or response.status not in _TRANSIENT_STATUSES:
        return None
    if isinstance(error, Unanswered):
        return None
    requested = error.retry_after if isinstance(error, TooManyAttempts) else response.retry_after
    if requested is None:
        return compute_backoff(tries)
    return None if requested > _MAX_RETRY_AFTER_SECONDS else requested + compute_backoff(1)
