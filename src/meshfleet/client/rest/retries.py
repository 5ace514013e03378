"""Decides whether and when a REST request is repeated, without I/O."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unanswered

if TYPE_CHECKING:
    from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
    from meshfleet.errors import FleetError

MAX_TRIES: Final = 5
"""Maximum number of attempts for one REST request, including the first attempt."""

_FIRST_PAUSE_SECONDS: Final = 0.25
"""Maximum seconds to wait before the second attempt of a REST request."""
_MAX_PAUSE_SECONDS: Final = 8.0
"""Maximum seconds to wait before any attempt of a REST request."""

_MAX_RETRY_AFTER_SECONDS: Final = 10
"""Maximum seconds of a `Retry-After` header for which the client waits, else the error is raised."""

_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses of temporary errors, after which a request may be repeated."""


def compute_backoff(tries: int) -> float:
    """Return the seconds to wait after `tries` attempts: random, up to a limit that doubles every time.

    Because it is random, clients do not all retry at the same time.
    """
    return uniform(0, min(_FIRST_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_PAUSE_SECONDS))  # noqa: S311 # jitter, not cryptography


def decide_retry_after_loss(request: HttpRequest, loss: ServiceUnreachable, tries: int) -> float | None:
    """Return the seconds to wait before a retry of a request without a response; None for no retry.

    `tries` is the number of attempts so far. A request that the service may have received is retried only if
    it is repeatable. If a response did not arrive in time, there is no retry. If a connection was not open in
    time, there is one retry.
    """
    max_tries = MAX_TRIES if not loss.is_timeout else 1 if loss.was_sent else 2
    if tries >= max_tries or (loss.was_sent and not request.is_repeatable):
        return None
    return compute_backoff(tries)


def decide_retry_after_error(
    request: HttpRequest, response: HttpResponse, error: FleetError, tries: int
) -> float | None:
    """Return the seconds to wait before a retry after an error response; None for no retry.

    `tries` is the number of attempts so far. After `Unanswered`, there is no retry, because the service has
    already waited for the gateway.
    """
    if tries >= MAX_TRIES or not request.is_repeatable or response.status not in _TRANSIENT_STATUSES:
        return None
    if isinstance(error, Unanswered):
        return None
    requested = error.retry_after if isinstance(error, TooManyAttempts) else response.retry_after
    if requested is None:
        return compute_backoff(tries)
    return None if requested > _MAX_RETRY_AFTER_SECONDS else requested + compute_backoff(1)
