"""Newest closed minute of each link of the last hour, in memory, for the topology of the mesh as it is now.

A link is added when its minute is closed, so it costs the same however often it is reported. Links are in two
generations: when the current one is an hour old, it becomes the previous one, whose links are forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from meshfleet.service.ingest.minute_rollup import KEY_IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.ingest.minute_rollup import MinuteRollup

KEPT_MS: Final = 3_600_000
"""Milliseconds for which links are kept at least; at most twice as long."""

HEARTBEATS: Final = 0
"""Key of the heartbeats of a device among its links, in place of a parent."""

_MAX_PARENTS: Final = 64
"""Maximum number of links of one device, against gateways that report invented parents."""


class LinkState(Struct, gc=False):
    """Link of a device to one parent, or its heartbeats: what the newest minute says about it.

    Times are Unix times in milliseconds.
    """

    gateway: int
    """Gateway that sent the newest reading."""
    seen_at: int
    """Time of the newest reading."""
    rssi: int
    """RSSI of the newest reading in dBm; 0 for heartbeats."""
    mean: float
    """Mean RSSI of the minute in dBm."""
    unreachable: bool
    """Whether the device cannot be reached through the parent, according to the newest reading."""
    linked_at: int
    """Time of the newest reading over an established link (without a channel); 0 if there is none."""
    count: int
    """Number of readings in the minute."""


Links = dict[int, LinkState]
"""Links of one device by parent; its heartbeats under `HEARTBEATS`."""


def build_link_state(minute: MinuteRollup) -> LinkState:
    """Return what a minute says about its link or heartbeats."""
    is_heartbeat = minute.key[KEY_IDENTIFIER] == HEARTBEATS
    return LinkState(
        minute.gateway,
        minute.last_at,
        0 if is_heartbeat else minute.last,
        0.0 if is_heartbeat else minute.total / minute.count,
        unreachable=minute.unreachable,
        linked_at=0 if is_heartbeat else minute.linked_at or minute.linked_before,
        count=minute.count,
    )


def keep_newest(links: Links, parent: int, link: LinkState) -> None:
    """Put a link into `links`, unless a newer minute of it is there; keep the newest time of its use."""
    known = links.get(parent)
    if known is None:
        links[parent] = link
        return
    newer, older = (known, link) if known.seen_at > link.seen_at else (link, known)
    if older.linked_at > newer.linked_at or older.count > newer.count:
        # The minute under way is not complete, so the larger count is that of a whole minute.
        newer = replace(
            newer,
            linked_at=max(older.linked_at, newer.linked_at),
            count=max(older.count, newer.count),
        )
    links[parent] = newer


class RecentLinks:
    """Links of all devices that reported in the last hour, and the devices that each gateway reported."""

    def __init__(self) -> None:
        self._minutes: dict[int, dict[int, MinuteRollup]] = {}
        self._previous_minutes: dict[int, dict[int, MinuteRollup]] = {}
        self._devices: dict[int, set[int]] = {}
        self._previous_devices: dict[int, set[int]] = {}
        self._stored: dict[int, Links] = {}
        """Links that were read from the database because the process has started since."""
        self._started_at = 0

    def add(self, minute: MinuteRollup) -> None:
        """Add a minute that was closed. A minute before the known one changes nothing."""
        device, _, parent, _ = minute.key
        minutes = self._minutes.get(device)
        if minutes is None:
            minutes = self._minutes[device] = self._take_previous(device)
            self.add_device(minute.gateway, device)
        known = minutes.get(parent)
        if known is None or known.gateway != minute.gateway:
            self.add_device(minute.gateway, device)
        if known is None:
            if len(minutes) >= _MAX_PARENTS:
                del minutes[min(minutes, key=lambda each: minutes[each].last_mark)]
        elif known.key > minute.key:  # keys of one link differ in the start of the minute
            return
        elif minute.heard:
            minute.linked_before = known.linked_at or known.linked_before
        minutes[parent] = minute

    def _take_previous(self, device: int) -> dict[int, MinuteRollup]:
        """Remove the links of a device from the previous generation. Return those that are not too old."""
        oldest = self._started_at - KEPT_MS
        previous = self._previous_minutes.pop(device, None) or {}
        return {parent: minute for parent, minute in previous.items() if minute.last_at >= oldest}

    def add_device(self, gateway: int, device: int) -> None:
        """Record that a gateway has reported a device."""
        devices = self._devices.get(gateway)
        if devices is None:
            self._devices[gateway] = {device}
        else:
            devices.add(device)

    def add_stored(self, stored: Mapping[int, Links]) -> None:
        """Add links that were read from the database, by device. Those in memory are newer."""
        for device, links in stored.items():
            self._stored[device] = links
            for link in links.values():
                self.add_device(link.gateway, device)

    def get_links(self, device: int) -> Links:
        """Return the links of a device by parent."""
        links = dict(self._stored.get(device, ()))
        for generation in (self._previous_minutes, self._minutes):
            for parent, minute in generation.get(device, {}).items():
                keep_newest(links, parent, build_link_state(minute))
        return links

    def list_devices(self, gateway: int) -> set[int]:
        """Return the devices that a gateway has reported in the last hour, and maybe some that it has not."""
        return self._devices.get(gateway, set()) | self._previous_devices.get(gateway, set())

    def forget_old(self, now: int) -> None:
        """Forget the previous generation of links if the current one is an hour old."""
        if 0 <= now - self._started_at < KEPT_MS:
            return
        if self._started_at:
            self._stored = {}
        self._started_at = now
        self._previous_minutes, self._minutes = self._minutes, {}
        self._previous_devices, self._devices = self._devices, {}
