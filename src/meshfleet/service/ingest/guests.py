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
        self.turned_away: set[int] = set()
        """Who was not known at the last look either."""

    async def look(self, database: Database) -> None:
        """See who is claimed now."""
        self.known, self.turned_away = await database.read(registering.known), set()

    async def look_for(self, strangers: set[int], database: Database) -> bool:
        """Whether one of these, whom nobody has looked for since, was claimed a moment ago."""
        if strangers <= self.turned_away:
            return False
        before = self.turned_away
        await self.look(database)
        self.turned_away = (before | strangers) - self.known
        return bool(strangers & self.known)
