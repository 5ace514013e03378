"""Bodies about when devices were connected."""

from __future__ import annotations

from typing import Literal

from meshfleet.wire.rest.bodies import Body, MacText, TimeText


class ConnectivityChange(Body, frozen=True, kw_only=True):
    """A device was connected from a moment on, or no longer (rest-189)."""

    time: TimeText
    connected: bool
    cause: Literal["heard", "silent", "gateway", "connection"]
    """It was heard; it was not for too long; its gateway came or went; it is a gateway itself, and its own
    connection began or ended."""
    gateway: MacText | None
    """Through which it was heard."""


class ConnectivityPage(Body, frozen=True, kw_only=True):
    """Changes, the newest first."""

    items: list[ConnectivityChange]
    next_token: str | None
