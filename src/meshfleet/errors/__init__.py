"""Errors that the service returns over REST and the SDK raises; submodules hold those of other areas.

`code` is stable and part of the API; the text is for people and may change. `http` is the status of the REST
response that carries the error; `errors.problems` turns such a response back into the error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem

if TYPE_CHECKING:
    from collections.abc import Sequence


# Root of all Meshfleet errors, and functions to quote untrusted input in error texts.

_MAX_QUOTED_CHARACTERS = 60
"""Characters of untrusted input that an error text quotes: enough to recognize it, too few to flood a log."""


_LARGEST_QUOTED_NUMBER = 10**_MAX_QUOTED_CHARACTERS
"""Larger numbers are not printed: Python refuses to format integers of more than some thousand digits."""


def quote_input(value: object) -> str:
    """Quote untrusted input for an error text: escaped, and cut when long."""
    match value:
        case str() | bytes():
            quoted = repr(value[: _MAX_QUOTED_CHARACTERS + 1])
            return quoted if len(quoted) <= _MAX_QUOTED_CHARACTERS else quoted[:_MAX_QUOTED_CHARACTERS] + "…"
        case bool() | float() | None:
            return repr(value)
        case int():
            return repr(value) if abs(value) < _LARGEST_QUOTED_NUMBER else "a very large number"
        case dict():
            return "an object"
        case list():
            return "an array"
    return f"a {type(value).__name__}"


def quote_name(name: str) -> str:
    """Return an untrusted name unchanged if it is short printable ASCII, else quoted by `quote_input`."""
    return (
        name
        if len(name) <= _MAX_QUOTED_CHARACTERS and name.isascii() and name.isprintable()
        else quote_input(name)
    )


def join_field_path(field: str, name: str) -> str:
    """Append a possibly untrusted name to a field path: `ext` and `unit` give `ext.unit`."""
    return f"{field}.{quote_name(name)}"


class Fault(NamedTuple):
    """One invalid field of a request and what is wrong with it."""

    field: str
    message: str


class ProblemDetails(NamedTuple):
    """Content of a problem response (RFC 9457) from which an error can be rebuilt."""

    detail: str
    faults: tuple[Fault, ...] = ()
    retry_after: int | None = None


class FleetError(Exception):
    """Base class of all errors that Meshfleet raises. Catch it to handle every one of them."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error from a problem response of the service."""
        return cls(problem.detail)


# Errors of clients that call a service over REST.


class ServiceUnreachable(FleetError):
    """Raised when no connection to the service is possible, or it does not respond in time. Retry later."""

    code = "service-unreachable"

    def __init__(self, message: str, *, was_sent: bool = False, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the service may have received the request, and may have carried it out."""
        self.is_timeout = is_timeout
        """Whether a timeout expired."""


class ServiceRefused(FleetError):
    """Raised when a response is not one of a Meshfleet service: wrong URL, certificate or content."""

    code = "service-refused"


# Errors of the service: requests that it refuses, and conditions that keep it from working.

_RETRY_AFTER_SECONDS = 10
"""Seconds to wait before a retry if the service does not say."""

_UNKNOWN_PATH = Path()


class Refused(FleetError):
    """Base class of errors of requests that the service refuses. The text says why; a retry does not help."""

    code, http = "refused", 400


class InvalidRequest(Refused):
    """Raised when fields of a request are invalid. `faults` lists every one of them."""

    code = "invalid-request"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with its faults; without any, the detail becomes a fault of the whole request."""
        return cls(problem.faults or (Fault("request", problem.detail),))

    def __str__(self) -> str:
        return "; ".join(f"{field}: {message}" for field, message in self.faults)


class ImageCheckFailed(InvalidRequest):
    """Raised when a firmware image fails a check that an admin may override (rest-221)."""

    code = "image-check-failed"


class InvalidToken(Refused):
    """Raised when a page token is forged, or was issued for other filters (rest-19).

    Start at the first page.
    """

    code = "invalid-token"


class NotLoggedIn(Refused):
    """Raised when the access token is missing, invalid or expired. Log in again."""

    code, http = "not-logged-in", 401


class WrongCredentials(Refused):
    """Raised when the user does not exist or the password is wrong; the text does not say which (auth-3)."""

    code, http = "wrong-credentials", 401


class NotAllowed(Refused):
    """Raised when the role of the account does not allow the operation."""

    code, http = "not-allowed", 403


class NotFound(Refused):
    """Raised when the requested resource does not exist."""

    code, http = "not-found", 404


class Conflict(Refused):
    """Base class of errors of requests that conflict with the present state of the service."""

    code, http = "conflict", 409


class AlreadyExists(Conflict):
    """Raised when a resource with this name, version or address already exists."""

    code = "already-exists"


class LastAdmin(Conflict):
    """Raised when the change would leave no admin. Make another user an admin first."""

    code = "last-admin"


class StillClaimed(Conflict):
    """Raised when a gateway is deleted that is still claimed. Release it first."""

    code = "still-claimed"


class InUse(Conflict):
    """Raised when a resource is deleted that another one still uses."""

    code = "in-use"


class NotReleased(Conflict):
    """Raised when a job names firmware that is not released (rest-118). Release it first."""

    code = "not-released"


class NoBroker(Conflict):
    """Raised when a gateway is claimed while the service has no MQTT address that gateways could use."""

    code = "no-broker"


class RequestTimeout(Refused):
    """Raised when the request did not arrive completely within the time limit."""

    code, http = "too-slow", 408


class RequestAborted(Refused):
    """Raised inside the service when the client disconnects before its request is complete.

    It is never sent.
    """

    code = "went-away"


class BodyTooLarge(Refused):
    """Raised when the body is larger than this operation accepts (rest-27)."""

    code, http = "body-too-large", 413


class UnsupportedMediaType(Refused):
    """Raised when the content type of the body is not one that this operation accepts."""

    code, http = "unsupported-media-type", 415


class RangeNotSatisfiable(Refused):
    """Raised when the requested byte range begins after the end of the file."""

    code, http = "range-not-satisfiable", 416

    def __init__(self, reason: str, size: int | None = None) -> None:
        super().__init__(reason)
        self.size = size
        """Size of the whole file in bytes; None if the service did not say."""


class TooManyAttempts(Refused):
    """Raised when logins fail or arrive too often (rest-14). Wait `retry_after` seconds."""

    code, http = "too-many-attempts", 429

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the seconds of the Retry-After header."""
        return cls(_RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after)

    def __str__(self) -> str:
        return f"too many attempts; try again in {self.retry_after} s"


class TooManySubscribers(TooManyAttempts):
    """Raised when the service has no capacity for another subscriber of live events.

    Retry after `retry_after` seconds.
    """

    code = "too-many-listeners"

    def __init__(self, reason: str, retry_after: int = _RETRY_AFTER_SECONDS) -> None:
        super().__init__(retry_after)
        self.args = reason, retry_after
        self._reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with its reason and the seconds of the Retry-After header."""
        return cls(
            problem.detail, _RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after
        )

    def __str__(self) -> str:
        return self._reason


class TooManySubscriptions(Refused):
    """Raised when one live connection has too many subscriptions or filter values."""

    code, http = "too-many-subscriptions", 429


class Unavailable(FleetError):
    """Raised when something that the service depends on is not available. Retry later."""

    code, http = "unavailable", 503


class DatabaseUnavailable(Unavailable):
    """Raised when the database is unreachable, locked or full.

    `readiness_problem` is the entry for `/readyz`.
    """

    code = "database-unavailable"

    def __init__(
        self, reason: object = "", cause: ReadinessCode = ReadinessCode.DATABASE_UNREACHABLE
    ) -> None:
        super().__init__(reason)
        self.readiness_problem = ReadinessProblem(cause, str(reason))


class ImagesUnavailable(Unavailable):
    """Raised when firmware images cannot be stored or read, for example because the disk is full.

    Retry later.
    """

    code = "images-unavailable"


class SamplesDamaged(FleetError):
    """Raised when a sample file fails its checksum: the disk or another program has changed it.

    Restore a backup.
    """

    code = "samples-damaged"

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(path, reason)
        self.path = path
        """The damaged file; an empty path if a service reported the error, because the file is on its
        machine."""
        self.reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error without its path."""
        return cls(_UNKNOWN_PATH, problem.detail)

    def __str__(self) -> str:
        if self.path == _UNKNOWN_PATH:
            return str(self.reason)
        return f"samples in {self.path.name} cannot be read: {self.reason}"


class ImageDamaged(FleetError):
    """Raised when the stored image of a firmware record is missing or fails its checksum. Upload it again."""

    code = "image-damaged"


# Errors of requests to gateways and devices.


class Unanswered(FleetError):
    """Base class of errors of requests to gateways that got no response. The text has no secrets."""

    code, http = "unanswered", 503
    sent: ClassVar[bool] = False
    """Whether the gateway may have received the request, and may have carried it out."""


class NoGateway(Unanswered):
    """Raised when no gateway is known that reaches the device. Nothing was sent."""

    code = "no-gateway"


class GatewayOffline(Unanswered):
    """Raised when the gateway is not connected. Nothing was sent."""

    code = "gateway-offline"


class GatewayBusy(Unanswered):
    """Raised when a request timed out while it waited for earlier requests to the same gateway.

    Nothing was sent; retry later.
    """

    code, http = "gateway-busy", 504


class Unrecorded(Unanswered):
    """Raised when the request cannot be recorded in the history. Nothing was sent."""

    code = "unrecorded"


class TooManyRequests(Unanswered):
    """Raised when too many requests are waiting for responses. Nothing was sent; retry later."""

    code = "too-many-requests"


class BrokerUnavailable(Unanswered):
    """Raised while the service starts or stops, or has no broker connection.

    Nothing was sent; retry later.
    """

    code = "broker-unavailable"


class GatewayTimeout(Unanswered):
    """Raised when the gateway did not respond in time. It may still carry the request out."""

    code, http = "gateway-timeout", 504
    sent = True


class GatewayLost(Unanswered):
    """Raised when the gateway disconnected before it responded. It may still carry the request out."""

    code, http = "gateway-lost", 504
    sent = True


class MalformedResponse(Unanswered):
    """Raised when the response of the gateway cannot be decoded. It may have carried the request out."""

    code, http = "malformed-response", 502
    sent = True


class Interrupted(Unanswered):
    """Raised when the service stopped or failed before a response arrived.

    The request may have been carried out.
    """

    code, http = "interrupted", 504
    sent = True


class Declined(FleetError):
    """Raised by `client.check` when the status of a response says that the operation failed."""

    code, http = "declined", 409

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class KeyReused(Conflict):
    """Raised when an idempotency key was already used with a different request (rest-26). Use a new key."""

    code = "idempotency-key-reused"
