"""Bodies about samples that are missing."""

from __future__ import annotations

from typing import Literal

from meshfleet.wire.rest.bodies import Body, IdentifierText, TimeText


class Hole(Body, frozen=True, kw_only=True):
    """Samples of a series are missing between two that are there (rest-190)."""

    kind: Literal["measurement", "event"]
    identifier: IdentifierText | None
    name: str | None
    since: TimeText
    """Of the sample before the hole."""
    until: TimeText
    """Of the sample behind it."""
    found_at: TimeText
    lost_at: TimeText | None
    """Since when the missing ones are not expected any more; None: they are asked for."""


class HolePage(Body, frozen=True, kw_only=True):
    """Holes, by kind, identifier and time."""

    items: list[Hole]
    next_token: str | None
