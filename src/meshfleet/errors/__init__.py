"""Errors that the service answers with over REST and that the SDK raises; other areas have modules beside.

`code` is stable and part of the interface; the text is for people and may change. `http` is the status of the
REST response when the error reaches it; `errors.problems` turns such a response into the same error again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem

if TYPE_CHECKING:
    from collections.abc import Sequence


# The root of all our errors, and how errors repeat foreign input.

_MAX_QUOTED_CHARACTERS = 60
"""Characters of foreign input that an error repeats: enough to recognise it, too few to flood a log."""


_LARGEST_QUOTED_NUMBER = 10**_MAX_QUOTED_CHARACTERS
"""Python refuses to write out numbers of some thousand digits."""


def quote_input(value: object) -> str:
    """Foreign input as an error may show it: quoted, escaped, and cut when long."""
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
    """A foreign name as the field of an error: as it is when it looks like a name, else as input is shown."""
    return (
        name
        if len(name) <= _MAX_QUOTED_CHARACTERS and name.isascii() and name.isprintable()
        else quote_input(name)
    )


def join_field_path(field: str, name: str) -> str:
    """A part of a field, under a name that may be foreign."""
    return f"{field}.{quote_name(name)}"


class Fault(NamedTuple):
    """What is wrong with one part of a request."""

    field: str
    message: str


class ProblemDetails(NamedTuple):
    """As much of an error as its problem tells over REST."""

    detail: str
    faults: tuple[Fault, ...] = ()
    retry_after: int | None = None


class FleetError(Exception):
    """Anything Meshfleet can say went wrong."""

    code: ClassVar[str] = "error"
    http: ClassVar[int] = 500

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """The same error at the other end of REST; who is made of more than words makes it of that."""
        return cls(problem.detail)


# Errors of those who use a service over REST.


class ServiceUnreachable(FleetError):
    """Nobody answers at the address of the service, or not in time. Another try may help."""

    code = "service-unreachable"

    def __init__(self, message: str, *, was_sent: bool = False, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the service may have got what was asked, and may have done it."""
        self.is_timeout = is_timeout
        """Whether time ran out while we waited."""


class ServiceRefused(FleetError):
    """The service does not do what we ask of it over REST, is not there, or is something else."""

    code = "service-refused"


# Errors of the service: what it refuses, and what keeps it from working.

_RETRY_AFTER_SECONDS = 10
"""Seconds after which it is worth another try."""

_UNKNOWN_PATH = Path()


class Refused(FleetError):
    """The service does not do what it was asked for, and says why."""

    code, http = "refused", 400


class InvalidRequest(Refused):
    """A request with mistakes, all of them."""

    code = "invalid-request"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Field by field; without any, what was said of the whole."""
        return cls(problem.faults or (Fault("request", problem.detail),))

    def __str__(self) -> str:
        return "; ".join(f"{field}: {message}" for field, message in self.faults)


class ImageCheckFailed(InvalidRequest):
    """A firmware image that fails a check which an admin may override (rest-221)."""

    code = "image-check-failed"


class InvalidToken(Refused):
    """A token for the next page that is not ours, or belongs to other filters (rest-19)."""

    code = "invalid-token"


class NotLoggedIn(Refused):
    """No token, or one that does not hold."""

    code, http = "not-logged-in", 401


class WrongCredentials(Refused):
    """No such user, or another password; which of the two is nobody's business (auth-3)."""

    code, http = "wrong-credentials", 401


class NotAllowed(Refused):
    """The role does not allow it."""

    code, http = "not-allowed", 403


class NotFound(Refused):
    """There is no such thing."""

    code, http = "not-found", 404


class Conflict(Refused):
    """It does not go together with what is there already."""

    code, http = "conflict", 409


class AlreadyExists(Conflict):
    """Somebody was here before."""

    code = "already-exists"


class LastAdmin(Conflict):
    """Nobody would be left who may manage users."""

    code = "last-admin"


class StillClaimed(Conflict):
    """A gateway is released before it is forgotten."""

    code = "still-claimed"


class InUse(Conflict):
    """Something else needs it."""

    code = "in-use"


class NotReleased(Conflict):
    """Only released firmware is brought to devices (rest-118)."""

    code = "not-released"


class NoBroker(Conflict):
    """There is no place to send gateways to."""

    code = "no-broker"


class TooSlow(Refused):
    """The request did not arrive in time."""

    code, http = "too-slow", 408


class WentAway(Refused):
    """The client left before it had said all; nobody hears this answer."""

    code = "went-away"


class BodyTooLarge(Refused):
    """A longer body than is read here (rest-27)."""

    code, http = "body-too-large", 413


class UnsupportedMediaType(Refused):
    """A body of another kind than is read here."""

    code, http = "unsupported-media-type", 415


class RangeNotSatisfiable(Refused):
    """A part of something that ends before that part begins."""

    code, http = "range-not-satisfiable", 416

    def __init__(self, reason: str, size: int | None = None) -> None:
        super().__init__(reason)
        self.size = size
        """Bytes of the whole."""


class TooManyAttempts(Refused):
    """Wait, then try again (rest-14)."""

    code, http = "too-many-attempts", 429

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """With the time to wait, which is not among the words."""
        return cls(_RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after)

    def __str__(self) -> str:
        return f"too many attempts; try again in {self.retry_after} s"


class TooManyListeners(TooManyAttempts):
    """So many listen to live events that there is no room for another one."""

    code = "too-many-listeners"

    def __init__(self, reason: str, retry_after: int = _RETRY_AFTER_SECONDS) -> None:
        super().__init__(retry_after)
        self.args = reason, retry_after
        self._reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """With the reason, too."""
        return cls(
            problem.detail, _RETRY_AFTER_SECONDS if problem.retry_after is None else problem.retry_after
        )

    def __str__(self) -> str:
        return self._reason


class TooManySubscriptions(Refused):
    """One listener wants more than one may."""

    code, http = "too-many-subscriptions", 429


class Unavailable(FleetError):
    """Something that the service stands on is missing. Another try may help."""

    code, http = "unavailable", 503


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or not as it should. `trouble` says what `/readyz` tells of it."""

    code = "database-unavailable"

    def __init__(
        self, reason: object = "", cause: ReadinessCode = ReadinessCode.DATABASE_UNREACHABLE
    ) -> None:
        super().__init__(reason)
        self.readiness_problem = ReadinessProblem(cause, str(reason))


class ImagesUnavailable(Unavailable):
    """Images of firmware cannot be written or read now: the disk may be full."""

    code = "images-unavailable"


class SamplesDamaged(FleetError):
    """A file with samples is not as it was written: the disk, or somebody, has changed it."""

    code = "samples-damaged"

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(path, reason)
        self.path = path
        """Nowhere, when a service told it: the file is on another machine."""
        self.reason = reason

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Without its place."""
        return cls(_UNKNOWN_PATH, problem.detail)

    def __str__(self) -> str:
        if self.path == _UNKNOWN_PATH:
            return str(self.reason)
        return f"samples in {self.path.name} cannot be read: {self.reason}"


class ImageDamaged(FleetError):
    """The image of a firmware record is not as it was written, or gone: the disk, or somebody, did that."""

    code = "image-damaged"


# Errors of requests to gateways and devices.


class Unanswered(FleetError):
    """A request to a gateway that brought no response, and why. The text is for everybody."""

    code, http = "unanswered", 503
    sent: ClassVar[bool] = False
    """Whether the gateway may have got it, and may have carried it out."""


class NoGateway(Unanswered):
    """No gateway is known that hears the device, so nothing was sent."""

    code = "no-gateway"


class GatewayOffline(Unanswered):
    """The gateway is not connected, so nothing was sent."""

    code = "gateway-offline"


class GatewayBusy(Unanswered):
    """Others were before us at this gateway until the time was over, so nothing was sent."""

    code, http = "gateway-busy", 504


class Unrecorded(Unanswered):
    """It could not be written down, and is not sent without a trace."""

    code = "unrecorded"


class TooManyRequests(Unanswered):
    """More requests wait for their answers than we keep in mind; nothing was sent."""

    code = "too-many-requests"


class BrokerUnavailable(Unanswered):
    """The service carries no requests now: it starts or ends, or has no broker. Nothing was sent."""

    code = "broker-unavailable"


class GatewayTimeout(Unanswered):
    """The gateway did not answer in time. It may still carry the request out."""

    code, http = "gateway-timeout", 504
    sent = True


class GatewayLost(Unanswered):
    """The gateway went away before it answered. It may still carry the request out."""

    code, http = "gateway-lost", 504
    sent = True


class MalformedResponse(Unanswered):
    """The gateway answered, and nobody can read it. It may have carried the request out."""

    code, http = "malformed-response", 502
    sent = True


class Interrupted(Unanswered):
    """Something in the service came between before an answer did. The request may have been carried out."""

    code, http = "interrupted", 504
    sent = True


class Declined(FleetError):
    """A response came, and its status says that what was asked for was not done."""

    code, http = "declined", 409

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class KeyReused(Conflict):
    """The same idempotency key came before with another request (rest-26)."""

    code = "idempotency-key-reused"
