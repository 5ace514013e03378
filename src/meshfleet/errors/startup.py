"""Errors that keep a command or the service from starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.errors import Fault


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
