"""Positions of the devices that the tracker follows, for answers to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.positions.site_model import LocatedDevice, SiteModel

MIN_ANCHORS: Final = 3
"""Minimum number of anchors that must have received a device."""
MAX_MISFIT_DB: Final = 14.0
"""Root mean square residual above which readings contradict each other."""

CURRENT_MS: Final = 900_000
"""Milliseconds after its last reading for which a device counts as being where it was."""
CLOCK_SLACK_MS: Final = 2_000
"""Milliseconds by which readings of now may be ahead: clocks of gateways are corrected only roughly."""


class UsedReadings(NamedTuple):
    """Readings that a position was computed from. Times are Unix times in milliseconds."""

    since: int
    """Time after which they are."""
    newest: int
    reading_count: int
    is_frequent: bool
    """Whether readings were frequent, so that the next ones are used soon."""


class CurrentPosition(NamedTuple):
    """Newest position of a device."""

    device: int
    used: UsedReadings
    model: SiteModel
    located: LocatedDevice

    @property
    def time(self) -> int:
        """Time of the newest reading, as Unix time in milliseconds."""
        return self.used.newest


class CurrentPositions:
    """Newest position of each device. All methods are called in the thread of the event loop."""

    def __init__(self) -> None:
        self._by_device: dict[int, CurrentPosition] = {}

    def keep(self, positions: Iterable[CurrentPosition]) -> None:
        """Replace the positions of some devices."""
        self._by_device.update((each.device, each) for each in positions)

    def drop_old(self, now: int) -> None:
        """Forget the positions of devices that have not been received for some minutes."""
        self._by_device = {device: each for device, each in self._by_device.items() if _is_recent(each, now)}

    def forget_site(self, site: int) -> None:
        """Forget the positions on a site that was deleted."""
        self._by_device = {
            device: each for device, each in self._by_device.items() if each.model.geometry.site != site
        }

    def find(self, device: int) -> CurrentPosition | None:
        """Return the position of a device; None if it has none."""
        return self._by_device.get(device)

    def list_site(self, site: int, now: int) -> list[CurrentPosition]:
        """Return the positions of all devices that a site received in the last minutes."""
        return [
            each
            for each in self._by_device.values()
            if each.model.geometry.site == site and _is_recent(each, now)
        ]


def _is_recent(position: CurrentPosition, now: int) -> bool:
    """Return whether a position still counts: not if it is old, or if the clock was set back since."""
    return now - CURRENT_MS < position.time <= now + CLOCK_SLACK_MS
