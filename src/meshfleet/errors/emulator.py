"""Errors of emulated gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Fault, FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ImageUnavailable(FleetError):
    """Raised when an emulated gateway cannot download a firmware image. A retry may help."""

    code = "image-unavailable"


class ImageBroken(FleetError):
    """Raised when a downloaded firmware image has the wrong size, hash or format. A retry does not help."""

    code = "image-broken"


class MalformedSite(FleetError):
    """Raised when the description of a simulated site is invalid. `faults` lists all invalid fields."""

    code, http = "malformed-site", 400

    def __init__(self, source: str, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__(source, faults)
        self.source = source
        self.faults = tuple(Fault(*each) for each in faults)

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {where}: {reason}" for where, reason in self.faults)


class UnreadableMemory(FleetError):
    """Raised when the saved flash memory of emulated devices cannot be read or belongs to another gateway."""

    code, http = "unreadable-memory", 400
