"""Errors because of which a command or the service cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from meshfleet.errors import Conflict, Fault, FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import ProblemDetails


class UnusableDatabase(FleetError):
    """Raised when the database is too old or too new, lacks a feature, or is in use."""

    code = "unusable-database"


class ReaderRefused(FleetError):
    """Raised when a database role cannot get access to samples, for example because it may not be created."""

    code = "reader-refused"


class UnusableAddress(FleetError):
    """Raised when an address on which to listen is in use, or does not belong to this machine."""

    code = "unusable-address"


class UnusableDataFolder(FleetError):
    """Raised when a directory is not usable, for example because of permissions or another process."""

    code = "unusable-folder"


class WrongSettings(Conflict):
    """Raised when settings are invalid at a start or reload (rest-167). `faults` lists all faults."""

    code = "wrong-settings"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    @classmethod
    def from_problem(cls, problem: ProblemDetails) -> Self:
        """Rebuild the error with the faults of an error response."""
        return cls(problem.faults or (Fault("settings", problem.detail),))

    def __str__(self) -> str:
        return "\n".join(f"{field}: {message}" for field, message in self.faults)
