"""Gateways on another broker, which lets them in without asking us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.gateways import registering

if TYPE_CHECKING:
    from meshfleet.db import Database


class Guests:
    """Whose reports are taken."""

    def __init__(self, *, welcome: bool) -> None:
        self.are_welcome = welcome
        """Whether those that nobody claimed are registered; else their reports are rejected (rest-79)."""
        self.known: set[int] = set()

    async def look(self, database: Database) -> None:
        """See who is claimed now."""
        self.known = await database.read(registering.known)
