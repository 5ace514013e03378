"""Errors that the service returns over REST and the SDK raises. Submodules contain all other errors.

`code` is stable and part of the API; the message is for people and may change. `http` is the status of the
REST response for the error; `errors.problems` turns such a response back into the error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem

if TYPE_CHECKING:
    from collections.abc import Sequence


# Root of all Meshfleet errors, and functions to quote untrusted input in error texts.

_MAX_QUOTED_CHARACTERS = 60
"""Maximum characters of untrusted input in an error message, so that long input cannot flood a log."""


_LARGEST_QUOTED_NUMBER = 10**_MAX_QUOTED_CHARACTERS
"""Numbers from this one on are not printed: Python cannot format integers of several thousand digits."""


def quote_input(value: object) -> str:
    """Quote untrusted input for an error message: unprintable characters are escaped, long input is cut."""
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
    """Append a field name, which may be untrusted, to a field path: `ext` and `unit` give `ext.unit`."""
    return f"{field}.{quote_name(name)}"


class Fault(NamedTuple):
    """Invalid field of a request or file, and the reason why the field is invalid."""

    field: str
    message: str


class ProblemDetails(NamedTuple):
    """Content of an error response (RFC 9457) from which the SDK rebuilds the service's error."""

    detail: str
    faults: tuple[Fault, ...] = ()
    retry_after: int | None = None


class FleetError(Exception):
    """Base class of all errors that Meshfleet raises. Catch `FleetError` to handle all of them."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error from an error response of the service."""
        return cls(problem.detail)


# Errors of clients that call a service over REST.


class ServiceUnreachable(FleetError):
    """Raised when the service cannot be reached, or does not respond in time. Retry later."""

    code = "service-unreachable"

    def __init__(self, message: str, *, was_sent: bool = False, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the service may have received the REST request, and may have executed it."""
        self.is_timeout = is_timeout
        """Whether the reason of the error is a timeout."""


class ServiceRefused(FleetError):
    """Raised when the server at the URL is no Meshfleet service: wrong URL, certificate or response."""

    code = "service-refused"


# Errors of the service: requests that it refuses, and conditions that keep it from working.

_RETRY_AFTER_SECONDS = 10
"""Seconds to wait before a retry if the response of the service has no `Retry-After` header."""

_UNKNOWN_PATH = Path()


class Refused(FleetError):
    """Base class of errors of REST requests that the service refuses; a retry does not help."""

    code, http = "refused", 400


class InvalidRequest(Refused):
    """Raised when fields of a REST request are invalid. `faults` lists all invalid fields."""

    code = "invalid-request"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the faults of an error response; without faults, with its detail."""
        return cls(problem.faults or (Fault("request", problem.detail),))

    def __str__(self) -> str:
        return "; ".join(f"{field}: {message}" for field, message in self.faults)


class ImageCheckFailed(InvalidRequest):
    """Raised when a firmware image fails a check that an admin may override (rest-221)."""

    code = "image-check-failed"


class InvalidToken(Refused):
    """Raised when the token of a list's next page is invalid, or belongs to other filters (rest-19)."""

    code = "invalid-token"


class TargetForbidden(Refused):
    """Raised when the URL of a channel leads to a host that messages are not sent to."""

    code = "target-forbidden"


class UnknownLabel(InvalidRequest):
    """Raised when a rule of alarms names a label that does not exist."""

    code = "unknown-label"


class NotNumeric(InvalidRequest):
    """Raised when a rule of alarms compares numbers, but the identifier or the value is no number."""

    code = "not-numeric"


class RuleTooWide(InvalidRequest):
    """Raised when the labels or models of a rule of alarms select too many devices."""

    code = "rule-too-wide"


class NotLoggedIn(Refused):
    """Raised when the access token of a REST request is missing, invalid or expired. Log in again."""

    code, http = "not-logged-in", 401


class WrongCredentials(Refused):
    """Raised when a login fails because the user does not exist or the password is wrong (auth-3)."""

    code, http = "wrong-credentials", 401


class NotAllowed(Refused):
    """Raised when the role of the account does not allow the operation."""

    code, http = "not-allowed", 403


class NotFound(Refused):
    """Raised when the requested resource does not exist."""

    code, http = "not-found", 404


class UnknownDevice(NotFound):
    """Raised when a place names a device that is not in the registry."""

    code = "unknown-device"


class UnknownSite(NotFound):
    """Raised when a path or a place names a site that does not exist."""

    code = "unknown-site"


class Conflict(Refused):
    """Base class of errors of REST requests that conflict with the current state of the service."""

    code, http = "conflict", 409


class VersionConflict(Conflict):
    """Raised when a resource was changed after it was read. Read it again, and repeat the change."""

    code, http = "version-conflict", 412


class BuiltinRule(Conflict):
    """Raised when a built-in rule of alarms is deleted. Disable it instead."""

    code = "builtin-rule"


class AlreadyExists(Conflict):
    """Raised when a new resource has the name, version or MAC of an existing resource."""

    code = "already-exists"


class LastAdmin(Conflict):
    """Raised when the last admin is deleted or loses the role. Make another user an admin first."""

    code = "last-admin"


class StillClaimed(Conflict):
    """Raised when a claimed gateway is deleted. Release the gateway first."""

    code = "still-claimed"


class InUse(Conflict):
    """Raised when a resource is deleted that another resource still uses, such as firmware used by a job."""

    code = "in-use"


class ChannelInUse(InUse):
    """Raised when a channel is deleted to which a route of alarms leads. Change the routes first."""

    code = "channel-in-use"


class FloorInUse(InUse):
    """Raised when a change of a site would remove a floor in use, or leave something on it outside."""

    code = "floor-in-use"


class ZoneExists(AlreadyExists):
    """Raised when a site has another zone of this name."""

    code = "zone-exists"


class AlarmCleared(Conflict):
    """Raised when an alarm is acknowledged or silenced that is over."""

    code = "alarm-cleared"


class NotReleased(Conflict):
    """Raised when a job is created for unreleased firmware (rest-118). Release the firmware first."""

    code = "not-released"


class NoBroker(Conflict):
    """Raised when a gateway is claimed, but the service has no MQTT address for gateways."""

    code = "no-broker"


class RequestTimeout(Refused):
    """Raised when a REST request did not arrive completely within the time limit."""

    code, http = "too-slow", 408


class RequestAborted(Refused):
    """Raised inside the service when a REST client disconnects in the middle of a request; never sent."""

    code = "went-away"


class BodyTooLarge(Refused):
    """Raised when the body of a REST request is larger than the operation accepts (rest-27)."""

    code, http = "body-too-large", 413


class UnsupportedMediaType(Refused):
    """Raised when the operation does not accept the content type of the REST request's body."""

    code, http = "unsupported-media-type", 415


class RangeNotSatisfiable(Refused):
    """Raised when the requested byte range of a download begins after the end of the file."""

    code, http = "range-not-satisfiable", 416

    def __init__(self, reason: str, size: int | None = None) -> None:
        super().__init__(reason)
        self.size = size
        """Size of the whole file in bytes; None if unknown."""


class TooManyAttempts(Refused):
    """Raised when too many logins wait or have failed (rest-14), or too many devices are being counted.

    Retry after `retry_after` seconds.
    """

    code, http = "too-many-attempts", 429

    def __init__(self, retry_after: int, reason: str = "too many attempts") -> None:
        super().__init__(retry_after, reason)
        self.retry_after = retry_after
        self._reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the seconds in the `Retry-After` header of the error response."""
        return cls(_RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after)

    def __str__(self) -> str:
        return f"{self._reason}; try again in {self.retry_after} s"


class TooManySubscribers(TooManyAttempts):
    """Raised when there are too many subscribers of live events. Retry after `retry_after` seconds."""

    code = "too-many-listeners"

    def __init__(self, reason: str, retry_after: int = _RETRY_AFTER_SECONDS) -> None:
        super().__init__(retry_after)
        self.args = reason, retry_after
        self._reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the detail and the `Retry-After` seconds of the error response."""
        return cls(
            problem.detail, _RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after
        )

    def __str__(self) -> str:
        return self._reason


class TooManySubscriptions(Refused):
    """Raised when one connection for live events has too many subscriptions or filter values."""

    code, http = "too-many-subscriptions", 429


class Unavailable(FleetError):
    """Raised when the service lacks something that it needs, such as the database. Retry later."""

    code, http = "unavailable", 503


class DatabaseUnavailable(Unavailable):
    """Raised when the database is unreachable, locked or full. `/readyz` reports `readiness_problem`."""

    code = "database-unavailable"

    def __init__(
        self, reason: object = "", cause: ReadinessCode = ReadinessCode.DATABASE_UNREACHABLE
    ) -> None:
        super().__init__(reason)
        self.readiness_problem = ReadinessProblem(cause, str(reason))


class ImagesUnavailable(Unavailable):
    """Raised when firmware images cannot be stored or read, for example on a full disk. Retry later."""

    code = "images-unavailable"


class CalibrationPending(Unavailable):
    """Raised when a large site is being calibrated for the first time, for minutes. Retry later."""

    code = "calibration-pending"


class SamplesDamaged(FleetError):
    """Raised when a file with samples fails its checksum, so that a backup must be restored."""

    code = "samples-damaged"

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(path, reason)
        self.path = path
        """Path of the damaged file; empty in the SDK, because the file is on the service's machine."""
        self.reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error without the path of the damaged file, which is unknown to clients."""
        return cls(_UNKNOWN_PATH, problem.detail)

    def __str__(self) -> str:
        if self.path == _UNKNOWN_PATH:
            return str(self.reason)
        return f"samples in {self.path.name} cannot be read: {self.reason}"


class ImageDamaged(FleetError):
    """Raised when a stored firmware image is missing or fails its checksum. Upload the image again."""

    code = "image-damaged"


# Errors of requests to gateways and devices.


class Unanswered(FleetError):
    """Base class of errors of requests to gateways without a valid response. Messages contain no secrets."""

    code, http = "unanswered", 503
    sent: ClassVar[bool] = False
    """Whether the gateway may have received the request, and may have executed it."""


class NoGateway(Unanswered):
    """Raised when no known gateway reaches the device. The request was not sent."""

    code = "no-gateway"


class GatewayOffline(Unanswered):
    """Raised when the gateway of a request is not connected. The request was not sent."""

    code = "gateway-offline"


class GatewayBusy(Unanswered):
    """Raised when a request was not sent in time, because it waited for earlier ones to the same gateway."""

    code, http = "gateway-busy", 504


class Unrecorded(Unanswered):
    """Raised when a request to a device cannot be recorded in the history. The request was not sent."""

    code = "unrecorded"


class TooManyRequests(Unanswered):
    """Raised when too many requests to gateways wait for responses. The request was not sent; retry later."""

    code = "too-many-requests"


class BrokerUnavailable(Unanswered):
    """Raised when a request was not sent because the service has no broker connection. Retry later."""

    code = "broker-unavailable"


class GatewayTimeout(Unanswered):
    """Raised when the gateway did not respond in time. The request may still be executed."""

    code, http = "gateway-timeout", 504
    sent = True


class GatewayLost(Unanswered):
    """Raised when the gateway disconnected before it responded. The request may still be executed."""

    code, http = "gateway-lost", 504
    sent = True


class MalformedResponse(Unanswered):
    """Raised when the gateway's response cannot be decoded. The request may have been executed."""

    code, http = "malformed-response", 502
    sent = True


class Interrupted(Unanswered):
    """Raised when the service stopped or failed before a response came. The request may still be executed."""

    code, http = "interrupted", 504
    sent = True


class Declined(FleetError):
    """Raised by `client.check` when the status of a device's response is an error."""

    code, http = "declined", 409

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class KeyReused(Conflict):
    """Raised when an idempotency key was already used for another request (rest-26). Use a new key."""

    code = "idempotency-key-reused"


# Errors of programs that receive webhooks.


class InvalidWebhook(FleetError):
    """Raised by `client.verify_webhook` when a request is no webhook of the service, or an old one."""

    code = "invalid-webhook"
