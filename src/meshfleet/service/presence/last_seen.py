"""Stores in memory when and through which gateway a report of each device was last received."""

from __future__ import annotations

from struct import Struct as BinaryFormat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Container, Iterator


# Interval of a device: the time between its heartbeats. It determines when a device counts as silent
# (rest-51, rest-52).

_MAX_INTERVALS: Final = 8
"""Maximum number of measured heartbeat intervals kept per device."""
_MIN_INTERVALS: Final = 3
"""Minimum number of measured heartbeat intervals of which the median is used."""

_INTERVAL_FORMATS: Final = tuple(BinaryFormat(f"={count}I") for count in range(_MAX_INTERVALS + 1))
"""Binary formats of 0 to 8 heartbeat intervals, which are packed to save memory."""
pack_interval: Final = _INTERVAL_FORMATS[1].pack
KEPT_INTERVAL_BYTES: Final = _INTERVAL_FORMATS[_MAX_INTERVALS - 1].size
"""Number of bytes of packed heartbeat intervals that are kept when another interval is added in front."""
MAX_INTERVAL_MS: Final = 2**32 - 1
"""Largest heartbeat interval in milliseconds that can be packed."""

DEFAULT_INTERVAL_MS: Final = 20 * 60_000
"""Assumed milliseconds between two heartbeats until enough intervals of a device have been measured."""

_MIN_INTERVAL_MS: Final = 60_000
"""Minimum usual interval between heartbeats in milliseconds; a shorter median counts as this."""
MISSED_HEARTBEATS: Final = 3
"""Number of usual heartbeat intervals without a report after which a device counts as silent."""

_REORDER_TOLERANCE_MS: Final = 60_000
"""A heartbeat up to this many milliseconds older than the previous one was delivered out of order.

If the heartbeat is even older, the gateway's clock was set back.
"""


class LastSeen(Struct, gc=False):
    """Presence data of a device. Times are local Unix times in milliseconds, unless stated otherwise."""

    # Fields that every heartbeat changes come first: with a million devices almost none is in the CPU cache.
    heard_at: int
    """Time when a report of the device was last received."""
    gateway: int
    """Gateway through which a report of the device was last received."""
    connected: bool
    heartbeat_at: int = 0
    """Time of the device's last heartbeat by the gateway's clock, corrected if that clock is wrong."""
    heartbeat_gateway: int = 0
    """Gateway that sent the device's last heartbeat."""
    packed_intervals: bytes = b""
    """Last intervals between heartbeats in milliseconds, packed as unsigned 32-bit integers, newest first."""
    due_slot: int = 0
    """Slot of the timer wheel at which the device is next checked for silence."""
    stored_interval: int = DEFAULT_INTERVAL_MS
    """Milliseconds between heartbeats as stored in the database, used until enough intervals are measured."""
    previous_gateway: int = 0
    """Gateway through which reports were received before `gateway`; 0 if there was none."""
    previous_heard_at: int = 0
    """Time when a report was last received through `previous_gateway`; 0 if there was none."""

    def mark_heard(self, gateway: int, at: int) -> None:
        """Record that a report of the device was received through a gateway."""
        if gateway != self.gateway:
            self.previous_gateway, self.previous_heard_at = self.gateway, self.heard_at
            self.gateway = gateway
        self.heard_at = max(self.heard_at, at)

    def record_heartbeat(self, gateway: int, time: int) -> None:
        """Record a heartbeat of the device. Ignore a copy of the last heartbeat from another gateway."""
        interval = time - self.heartbeat_at
        if 0 < interval <= MAX_INTERVAL_MS:
            if gateway != self.heartbeat_gateway:
                if 2 * interval < self.interval:
                    return
                self.heartbeat_gateway = gateway
            self.packed_intervals = pack_interval(interval) + self.packed_intervals[:KEPT_INTERVAL_BYTES]
            self.heartbeat_at = time
        elif interval < -_REORDER_TOLERANCE_MS or interval > MAX_INTERVAL_MS:
            self.heartbeat_gateway, self.heartbeat_at = gateway, time

    @property
    def interval(self) -> int:
        """Usual milliseconds between heartbeats: the median of measured intervals, or the stored value."""
        count = len(self.packed_intervals) // _INTERVAL_FORMATS[1].size
        if count < _MIN_INTERVALS:
            return self.stored_interval
        intervals: list[int] = sorted(_INTERVAL_FORMATS[count].unpack(self.packed_intervals))
        return max((intervals[(count - 1) // 2] + intervals[count // 2]) // 2, _MIN_INTERVAL_MS)

    @property
    def silence_timeout(self) -> int:
        """Milliseconds without reports after which the device counts as silent."""
        return MISSED_HEARTBEATS * self.interval

    def switch_gateway(self, connected: Container[int], now: int) -> bool:
        """Switch the device to its previous gateway after the current gateway disconnected.

        Return False if the previous gateway is not connected, or has not received the device recently.
        """
        if self.previous_gateway not in connected or now - self.previous_heard_at >= self.silence_timeout:
            return False
        self.gateway, self.previous_gateway = self.previous_gateway, 0
        return True


# Timers of devices: a timer wheel with slots of some seconds.

_SLOT_MS: Final = 5_000
"""Milliseconds per slot of the timer wheel."""


class TimerWheel:
    """Schedules checks whether devices are silent, in slots of 5 seconds.

    A device that is scheduled again stays in its old slot too, but is skipped when that slot is due.
    """

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def schedule(self, device: int, last_seen: LastSeen, at: int) -> None:
        """Schedule the next silence check of a device in the first slot after the time `at`."""
        last_seen.due_slot = at // _SLOT_MS + 1
        self.slots.setdefault(last_seen.due_slot, []).append(device)

    def pop_due(self, by_device: dict[int, LastSeen], now: int) -> Iterator[tuple[int, LastSeen]]:
        """Remove the devices whose silence check is due, and yield those that are connected."""
        for slot in sorted(slot for slot in self.slots if slot * _SLOT_MS <= now):
            devices = self.slots[slot]
            while devices:  # a caller that stops early leaves the rest
                device = devices.pop()
                last_seen = by_device.get(device)
                if last_seen is not None and last_seen.connected and last_seen.due_slot == slot:
                    yield device, last_seen
            del self.slots[slot]

    def clear(self) -> None:
        """Cancel all silence checks."""
        self.slots.clear()


class LastSeenIndex:
    """Index of `LastSeen` by device, and of devices by the gateway that last received each device."""

    def __init__(self) -> None:
        self.devices: dict[int, LastSeen] = {}
        self._by_gateway: dict[int, set[int]] = {}

    def list_devices_behind(self, gateway: int) -> list[int]:
        """Return the devices whose last report came through a gateway; the gateway itself may be included."""
        return list(self._by_gateway.get(gateway, ()))

    def add(self, device: int, gateway: int, now: int) -> LastSeen:
        """Add a device to the index, as not connected. Return its presence data."""
        last_seen = self.devices[device] = LastSeen(now, gateway, connected=False)
        self._by_gateway.setdefault(gateway, set()).add(device)
        return last_seen

    def mark_heard(self, device: int, gateway: int, now: int) -> None:
        """Record that a report of a device was received through a gateway, which may be a new one."""
        last_seen = self.devices[device]
        self._move_device(device, last_seen.gateway, gateway)
        last_seen.mark_heard(gateway, now)

    def switch_gateway(self, device: int, connected: dict[int, int], now: int) -> bool:
        """Switch a device to its previous gateway if that gateway is connected and received it recently.

        Return whether the device was switched.
        """
        last_seen = self.devices[device]
        former_gateway = last_seen.gateway
        if not last_seen.switch_gateway(connected, now):
            return False
        self._move_device(device, former_gateway, last_seen.gateway)
        return True

    def remove(self, device: int) -> None:
        """Discard the presence data of a device. Do nothing if the device is unknown."""
        last_seen = self.devices.pop(device, None)
        if last_seen is not None:
            self._remove_from_gateway(device, last_seen.gateway)

    def find_clock_source(self, device: int, gateway: int) -> int:
        """Return the `source` of a report for `GatewayClocks.is_fresh`: the reporting device, or 0.

        0 is returned if the gateway has no other device whose reports could confirm the gateway's clock, or
        if the gateway reports about itself.
        """
        devices = self._by_gateway.get(gateway, set())
        others = len(devices) - (device in devices) - (gateway in devices)
        return device if others and device != gateway else 0

    def _move_device(self, device: int, former_gateway: int, gateway: int) -> None:
        """Move a device in the index from its former gateway to another."""
        if former_gateway != gateway:
            self._remove_from_gateway(device, former_gateway)
            self._by_gateway.setdefault(gateway, set()).add(device)

    def _remove_from_gateway(self, device: int, gateway: int) -> None:
        """Remove a device from the devices of a gateway."""
        devices = self._by_gateway[gateway]
        devices.discard(device)
        if not devices:
            del self._by_gateway[gateway]
