"""Decides which devices are in which zones, without I/O (rest-263).

A position near the edge of a zone is inside one minute and outside the next. So entering needs more than half
of the probability twice running, and leaving needs less than a third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

ENTER_SHARE: Final = 1 / 2
"""Share of the probability above which a position counts as inside a zone."""
MAX_FIRST_INSIDE: Final = 50_000
"""Maximum number of devices that wait for a second position inside: gateways may report any number that are
never received again."""
LEAVE_SHARE: Final = 1 / 3
"""Share of the probability below which a device has left a zone."""


class Stay(NamedTuple):
    """Zone, and a device that may be in it."""

    zone: int
    device: int


class ZoneChange(NamedTuple):
    """Entry of a device into a zone, or its departure. Times are Unix times in milliseconds."""

    stay: Stay
    entered_at: int
    left_at: int | None
    """None if the device enters."""

    @property
    def time(self) -> int:
        """Time of the change."""
        return self.entered_at if self.left_at is None else self.left_at


class ZonePresence:
    """Devices in zones. Changes count only once the caller applies them, after it has stored them."""

    def __init__(self) -> None:
        self._entered_at: dict[Stay, int] = {}
        self._zones_of: dict[int, set[int]] = {}
        self._first_inside: dict[Stay, int] = {}
        """Time of the last position of a device that is inside for the first time."""

    def restore(self, stays: Mapping[Stay, int]) -> None:
        """Restore the devices that were in zones when the previous process ended, with their entry."""
        for stay, entered_at in stays.items():
            self._enter(stay, entered_at)

    def keep_zones(self, zones: AbstractSet[int]) -> None:
        """Forget all zones but these."""
        gone = [each for each in self._entered_at if each.zone not in zones]
        for each in gone:
            self._leave(each)
        self._first_inside = {stay: time for stay, time in self._first_inside.items() if stay.zone in zones}

    def find_changes(self, device: int, time: int, shares: Mapping[int, float]) -> list[ZoneChange]:
        """Return the changes that a new position causes.

        `shares` has the share of the probability that is inside, for each zone of the site of the position.
        """
        changes = []
        inside = self._zones_of.get(device, set())
        for zone in inside | shares.keys():
            stay, share = Stay(zone, device), shares.get(zone, 0.0)
            if zone in inside:
                if share < LEAVE_SHARE:
                    entered_at = self._entered_at[stay]
                    changes.append(ZoneChange(stay, entered_at, max(time, entered_at)))
            elif share <= ENTER_SHARE:
                self._first_inside.pop(stay, None)
            elif (first := self._first_inside.setdefault(stay, time)) != time:
                changes.append(ZoneChange(stay, first, None))
            elif len(self._first_inside) > MAX_FIRST_INSIDE:
                del self._first_inside[next(iter(self._first_inside))]
        return changes

    def apply(self, changes: Iterable[ZoneChange]) -> None:
        """Count changes as done."""
        for stay, entered_at, left_at in changes:
            if left_at is None:
                self._enter(stay, entered_at)
            else:
                self._leave(stay)

    def forget(self, stays: Iterable[Stay]) -> None:
        """Forget stays that could not be stored: the device or the zone was deleted."""
        for stay in stays:
            self._first_inside.pop(stay, None)
            self._leave(stay)

    def keep_stays(self, stays: AbstractSet[Stay]) -> None:
        """Forget all stays but these, which are stored: a device may have been deleted while in a zone."""
        self.forget(self._entered_at.keys() - stays)

    def _enter(self, stay: Stay, entered_at: int) -> None:
        self._first_inside.pop(stay, None)
        self._entered_at[stay] = entered_at
        self._zones_of.setdefault(stay.device, set()).add(stay.zone)

    def _leave(self, stay: Stay) -> None:
        self._entered_at.pop(stay, None)
        zones = self._zones_of.get(stay.device, set())
        zones.discard(stay.zone)
        if not zones:
            self._zones_of.pop(stay.device, None)
