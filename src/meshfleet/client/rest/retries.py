"""Decisions whether and when to repeat a request. Nothing here sends or waits."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unanswered

if TYPE_CHECKING:
    from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
    from meshfleet.errors import FleetError

MAX_TRIES: Final = 5
"""Attempts of one call, the first one included."""

_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = 8.0
"""Maximum seconds before the second attempt, and before any later one."""

_MAX_RETRY_AFTER_SECONDS: Final = 10
"""Longest Retry-After in seconds that is obeyed; after a longer one the error is raised."""

_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Statuses of errors that may pass."""


def compute_backoff(tries: int) -> float:
    """Return random seconds to wait after a number of attempts, up to a limit that doubles each time.

    Random, so that clients do not retry in step.
    """
    return uniform(0, min(_FIRST_PAUSE_SECONDS * 2 ** (tries - 1), _MAX_PAUSE_SECONDS))  # noqa: S311 # jitter, not cryptography


def decide_retry_after_loss(request: HttpRequest, loss: ServiceUnreachable, tries: int) -> float | None:
    """Return the seconds until the next attempt after a missing response; None: do not retry.

    A request that may have arrived is repeated only if it is repeatable. After a full timeout there is no
    retry; after a connect timeout, which is half as long, there is one.
    """
    max_tries = MAX_TRIES if not loss.is_timeout else 1 if loss.was_sent else 2
    if tries >= max_tries or (loss.was_sent and not request.is_repeatable):
        return None
    return compute_backoff(tries)


def decide_retry_after_error(
    request: HttpRequest, response: HttpResponse, error: FleetError, tries: int
) -> float | None:
    """Return the seconds until the next attempt after an error response; None: do not retry.

    `Unanswered` is not retried: the service has already waited for the gateway.
    """
    if tries >= MAX_TRIES or not request.is_repeatable or response.status not in _TRANSIENT_STATUSES:
        return None
    if isinstance(error, Unanswered):
        return None
    requested = error.retry_after if isinstance(error, TooManyAttempts) else response.retry_after
    if requested is None:
        return compute_backoff(tries)
    return None if requested > _MAX_RETRY_AFTER_SECONDS else requested + compute_backoff(1)
