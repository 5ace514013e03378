"""Errors of emulated gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ImageUnavailable(FleetError):
    """Nobody says where a firmware image is, or it cannot be fetched there. Another try may help."""

    code = "image-unavailable"


class ImageBroken(FleetError):
    """What was fetched is not the firmware image that was promised. It will not get better."""

    code = "image-broken"


class MalformedSite(FleetError):
    """A site file with mistakes, all of them: where they are, and what they are."""

    code, http = "malformed-site", 400

    def __init__(self, source: str, mistakes: Sequence[tuple[str, str]]) -> None:
        super().__init__(source, mistakes)
        self.source = source
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {where}: {reason}" for where, reason in self.mistakes)


class UnreadableMemory(FleetError):
    """What emulated devices kept, in a form that is none."""

    code, http = "unreadable-memory", 400
