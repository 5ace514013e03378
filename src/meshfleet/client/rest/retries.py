"""Whether and when to ask once more. Nothing here asks, or waits."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ServiceUnreachable, TooManyAttempts, Unanswered

if TYPE_CHECKING:
    from meshfleet.client.rest.calls import Answer, Call
    from meshfleet.errors import FleetError

TRIES: Final = 5
"""Of one call, all together."""

_FIRST: Final = 0.25
_MOST: Final = 8.0
"""Seconds up to which we wait before the second try, and before any other."""

_LONGEST: Final = 10
"""Seconds that a service may ask us to wait; who wants more is told so."""

_PASSING: Final = frozenset({429, 502, 503, 504})
"""Statuses that may be others in a moment."""


def delay(tries: int) -> float:
    """Seconds to wait after so many tries: up to a limit that doubles, so that nobody comes in step."""
    return uniform(0, min(_FIRST * 2 ** (tries - 1), _MOST))  # noqa: S311 # spreads load, guards nothing


def pause_after_loss(call: Call, loss: ServiceUnreachable, tries: int) -> float | None:
    """Seconds until the next try after no answer came; None: there is none.

    What may have arrived is said again only if that does no harm. Who waited for all their time is not made
    to wait as long again; who was not reached in half of it is tried once more.
    """
    most = TRIES if not loss.is_slow else 1 if loss.was_sent else 2
    if tries >= most or (loss.was_sent and not call.is_repeatable):
        return None
    return delay(tries)


def pause_after(call: Call, answer: Answer, error: FleetError, tries: int) -> float | None:
    """Seconds until the next try after an answer that was an error; None: there is none.

    That a gateway did not answer is an answer of the service, which will not change by asking again.
    """
    if tries >= TRIES or not call.is_repeatable or answer.status not in _PASSING:
        return None
    if isinstance(error, Unanswered):
        return None
    asked = error.retry_after if isinstance(error, TooManyAttempts) else answer.retry_after
    if asked is None:
        return delay(tries)
    return None if asked > _LONGEST else asked + delay(1)
