"""Errors of the service: what it refuses, and what keeps it from working."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from meshfleet.errors.readiness import ReadinessCode, Trouble
from meshfleet.errors.root import Fault, FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors.root import Told


_SOON = 10
"""Seconds after which it is worth another try."""

_NOWHERE = Path()


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
    def told(cls, told: Told) -> Self:
        """Field by field; without any, what was said of the whole."""
        return cls(told.faults or (Fault("request", told.words),))

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
    def told(cls, told: Told) -> Self:
        """With the time to wait, which is not among the words."""
        return cls(_SOON if told.retry_after is None else told.retry_after)

    def __str__(self) -> str:
        return f"too many attempts; try again in {self.retry_after} s"


class TooManyListeners(TooManyAttempts):
    """So many listen to live events that there is no room for another one."""

    code = "too-many-listeners"

    def __init__(self, reason: str, retry_after: int = _SOON) -> None:
        super().__init__(retry_after)
        self.args = reason, retry_after
        self._reason = reason

    @classmethod
    def told(cls, told: Told) -> Self:
        """With the reason, too."""
        return cls(told.words, _SOON if told.retry_after is None else told.retry_after)

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
        self.trouble = Trouble(cause, str(reason))


class ImagesUnavailable(Unavailable):
    """Images of firmware cannot be written or read now: the disk may be full."""

    code = "images-unavailable"


class UnusableDatabase(FleetError):
    """The database is there and cannot be used as it is: too old, too new, or without what we need."""

    code = "unusable-database"


class UnusableAddress(FleetError):
    """Nobody can listen there: it is taken, or not ours."""

    code = "unusable-address"


class UnusableFolder(FleetError):
    """The data directory cannot be used: not ours, or in use."""

    code = "unusable-folder"


class WrongSettings(FleetError):
    """Settings with mistakes, all of them (rest-167)."""

    code = "wrong-settings"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(f"{field}: {message}" for field, message in self.faults)


class SamplesDamaged(FleetError):
    """A file with samples is not as it was written: the disk, or somebody, has changed it."""

    code = "samples-damaged"

    def __init__(self, place: Path, reason: object) -> None:
        super().__init__(place, reason)
        self.place = place
        """Nowhere, when a service told it: the file is on another machine."""
        self.reason = reason

    @classmethod
    def told(cls, told: Told) -> Self:
        """Without its place."""
        return cls(_NOWHERE, told.words)

    def __str__(self) -> str:
        if self.place == _NOWHERE:
            return str(self.reason)
        return f"samples in {self.place.name} cannot be read: {self.reason}"


class ImageDamaged(FleetError):
    """The image of a firmware record is not as it was written, or gone: the disk, or somebody, did that."""

    code = "image-damaged"
