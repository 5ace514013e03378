"""Positions of the devices that the tracker follows, for answers to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.positions.site_model import LocatedDevice, SiteModel

CURRENT_MS: Final = 900_000
"""Milliseconds after its last reading for which a device counts as being where it was."""


class CurrentPosition(NamedTuple):
    """Newest position of a device."""

    device: int
    time: int
    """Time of the newest reading, as Unix time in milliseconds."""
    step_ms: int
    """Milliseconds of newer readings that have to arrive before the next position is computed."""
    model: SiteModel
    located: LocatedDevice


class CurrentPositions:
    """Newest position of each device. All methods are called in the thread of the event loop."""

    def __init__(self) -> None:
        self._by_device: dict[int, CurrentPosition] = {}

    def keep(self, positions: Iterable[CurrentPosition]) -> None:
        """Replace the positions of some devices."""
        self._by_device.update((each.device, each) for each in positions)

    def drop_old(self, now: int) -> None:
        """Forget the positions of devices that have not been received for some minutes."""
        self._by_device = {
            device: each for device, each in self._by_device.items() if each.time > now - CURRENT_MS
        }

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
            if each.model.geometry.site == site and each.time > now - CURRENT_MS
        ]
