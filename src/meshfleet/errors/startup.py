"""Errors because of which a command or the service cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import Fault


class UnusableDatabase(FleetError):
    """Raised when the database is too old or too new, lacks a feature, or is in use."""

    code = "unusable-database"


class UnusableAddress(FleetError):
    """Raised when an address on which to listen is in use, or does not belong to this machine."""

    code = "unusable-address"


class UnusableDataFolder(FleetError):
    """Raised when a directory is not usable, for example because of permissions or another process."""

    code = "unusable-folder"


class WrongSettings(FleetError):
    """Raised when settings are invalid (rest-167). `faults` lists all invalid settings."""

    code = "wrong-settings"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(f"{field}: {message}" for field, message in self.faults)
