"""Notices changed sites, so that models of sites in memory can be built again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meshfleet.service.sites.places import load_anchor_sites, load_site_revisions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.db import Database


class SiteChanges:
    """Revisions and anchors of all sites in memory, and callbacks for sites whose revision has changed.

    The revisions themselves are in the database, because other processes change sites too, and because a
    place also disappears with its device. Routes call `check` after each commit that changes the floors or
    places of a site; a process that needs to notice all other changes calls it regularly.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._revisions: dict[int, int] = {}
        self._anchors: dict[int, int] = {}
        self._callbacks: list[Callable[[int], None]] = []
        # Checks one after another: an older snapshot must not replace a newer one.
        self._lock = asyncio.Lock()

    @property
    def revisions(self) -> Mapping[int, int]:
        """Revision of each site at the last check, by number of the site."""
        return self._revisions

    @property
    def anchors(self) -> Mapping[int, int]:
        """Number of the site of each device with a place, at the last check."""
        return self._anchors

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Add a callback that `check` calls with the number of each changed, new or deleted site."""
        self._callbacks.append(callback)

    async def check(self) -> None:
        """Load the revisions, and call all callbacks for each site whose revision is another one."""
        async with self._lock:
            before, self._revisions = self._revisions, await self._database.read(load_site_revisions)
            changed = [
                number
                for number in {**before, **self._revisions}
                if before.get(number) != self._revisions.get(number)
            ]
            if changed:
                self._anchors = await self._database.read(load_anchor_sites)
        for number in changed:
            for callback in self._callbacks:
                callback(number)
