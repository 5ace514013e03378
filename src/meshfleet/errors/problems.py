"""From a problem that a service told over REST back to the error that it raised (rest-10)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from meshfleet.errors import (
    BodyTooLarge,
    Conflict,
    ImageDamaged,
    NotAllowed,
    NotFound,
    NotLoggedIn,
    Refused,
    SamplesDamaged,
    TooManyAttempts,
    TooSlow,
    Unanswered,
    Unavailable,
    UnsupportedMediaType,
)
from meshfleet.errors.protocol import GatewayTooOld, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.errors import FleetError, ProblemDetails

_SERVICE_ERRORS: Final[tuple[type[FleetError], ...]] = (
    Refused,
    Unavailable,
    Unanswered,
    WireError,
    GatewayTooOld,
    SamplesDamaged,
    ImageDamaged,
)
"""What a service tells of itself. All other errors are of somebody's own place."""

_BY_STATUS: Final[Mapping[int, type[FleetError]]] = {
    each.http: each
    for each in (
        NotLoggedIn,
        NotAllowed,
        NotFound,
        TooSlow,
        Conflict,
        BodyTooLarge,
        UnsupportedMediaType,
        TooManyAttempts,
    )
}
_INTERNAL: Final = 500


def decode_problem(code: str, status: int, problem: ProblemDetails) -> FleetError:
    """The error with this code; of a code that we do not know, as much as its HTTP status says."""
    return (_by_code().get(code) or _by_status(status)).from_problem(problem)


def _by_status(status: int) -> type[FleetError]:
    return _BY_STATUS.get(status, Unavailable if status >= _INTERNAL else Refused)


@cache
def _by_code() -> Mapping[str, type[FleetError]]:
    return {error.code: error for family in _SERVICE_ERRORS for error in _tree(family)}


def _tree(error: type[FleetError]) -> Iterator[type[FleetError]]:
    yield error
    for below in error.__subclasses__():
        yield from _tree(below)
