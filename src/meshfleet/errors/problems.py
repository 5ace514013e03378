"""Converts error responses of the REST API back to the errors that the service raised (rest-10)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from meshfleet import errors
from meshfleet.errors.protocol import GatewayTooOld, MalformedInput
from meshfleet.errors.startup import WrongSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.errors import FleetError, ProblemDetails

_SERVICE_ERRORS: Final[tuple[type[FleetError], ...]] = (
    errors.Refused,
    errors.Unavailable,
    errors.Unanswered,
    MalformedInput,
    GatewayTooOld,
    WrongSettings,
    errors.SamplesDamaged,
    errors.ImageDamaged,
)
"""Base classes of the errors that a service can report over REST. Other errors are local to a process."""

_BY_STATUS: Final[Mapping[int, type[FleetError]]] = {
    each.http: each
    for each in (
        errors.NotLoggedIn,
        errors.NotAllowed,
        errors.NotFound,
        errors.RequestTimeout,
        errors.Conflict,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.TooManyAttempts,
    )
}
_INTERNAL: Final = 500


def decode_problem(code: str, status: int, problem: ProblemDetails) -> FleetError:
    """Rebuild the error with this code; for an unknown code, an error that fits the HTTP status."""
    return (_errors_by_code().get(code) or _select_by_status(status)).from_problem(problem)


def _select_by_status(status: int) -> type[FleetError]:
    return _BY_STATUS.get(status, errors.Unavailable if status >= _INTERNAL else errors.Refused)


@cache
def _errors_by_code() -> Mapping[str, type[FleetError]]:
    return {error.code: error for family in _SERVICE_ERRORS for error in _list_subclasses(family)}


def _list_subclasses(error: type[FleetError]) -> Iterator[type[FleetError]]:
    yield error
    for subclass in error.__subclasses__():
        yield from _list_subclasses(subclass)
