"""Who was heard, and through whom."""

from __future__ import annotations

from struct import Struct as Form
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Container, Iterator


# The rhythm of a device: how often it is heard, and so from when on it is silent (rest-51, rest-52).

_MAX_INTERVALS: Final = 8
_MIN_INTERVALS: Final = 3
"""Gaps between heartbeats: how many are remembered, and how many make a rhythm."""

_INTERVAL_FORMATS: Final = tuple(Form(f"={count}I") for count in range(_MAX_INTERVALS + 1))
"""So many gaps as bytes: small, and quick to take apart, for a million devices have eight each."""
pack_interval: Final = _INTERVAL_FORMATS[1].pack
KEPT_INTERVAL_BYTES: Final = _INTERVAL_FORMATS[_MAX_INTERVALS - 1].size
"""Bytes of the gaps that stay when another one comes."""
MAX_INTERVAL_MS: Final = 2**32 - 1

DEFAULT_INTERVAL_MS: Final = 20 * 60_000
"""Milliseconds between two heartbeats of a device that is not known well."""

_MIN_INTERVAL_MS: Final = 60_000
MISSED_HEARTBEATS: Final = 3
"""A device may miss so many heartbeats."""

_REORDER_TOLERANCE_MS: Final = 60_000
"""Milliseconds by which a heartbeat may come out of order; further back it is the clock that was set."""


class LastSeen(Struct, gc=False):
    """What is remembered of a device that is heard. Times are milliseconds, by our own clock if not said."""

    # What every heartbeat touches comes first: of a million devices nearly none is in the processor's memory.
    heard_at: int
    """When it was last heard."""
    gateway: int
    """Through whom."""
    connected: bool
    heartbeat_at: int = 0
    """When its last heartbeat was."""
    heartbeat_gateway: int = 0
    """Through whom."""
    packed_intervals: bytes = b""
    """The last ones in milliseconds, the newest first."""
    due_slot: int = 0
    """When it is to be looked at again, as the wheel counts."""
    stored_interval: int = DEFAULT_INTERVAL_MS
    """Milliseconds between its heartbeats as known before."""
    previous_gateway: int = 0
    previous_heard_at: int = 0
    """Through whom else it was heard before, and when."""

    def mark_heard(self, gateway: int, at: int) -> None:
        """It was heard."""
        if gateway != self.gateway:
            self.previous_gateway, self.previous_heard_at = self.gateway, self.heard_at
            self.gateway = gateway
        self.heard_at = max(self.heard_at, at)

    def record_heartbeat(self, gateway: int, time: int) -> None:
        """It sent a heartbeat. Another gateway may hear the same one a little earlier or later."""
        gap = time - self.heartbeat_at
        if 0 < gap <= MAX_INTERVAL_MS:
            if gateway != self.heartbeat_gateway:
                if 2 * gap < self.interval:
                    return
                self.heartbeat_gateway = gateway
            self.packed_intervals = pack_interval(gap) + self.packed_intervals[:KEPT_INTERVAL_BYTES]
            self.heartbeat_at = time
        elif gap < -_REORDER_TOLERANCE_MS or gap > MAX_INTERVAL_MS:
            self.heartbeat_gateway, self.heartbeat_at = gateway, time

    @property
    def interval(self) -> int:
        """Milliseconds that usually pass between two heartbeats."""
        count = len(self.packed_intervals) // _INTERVAL_FORMATS[1].size
        if count < _MIN_INTERVALS:
            return self.stored_interval
        gaps: list[int] = sorted(_INTERVAL_FORMATS[count].unpack(self.packed_intervals))
        return max((gaps[(count - 1) // 2] + gaps[count // 2]) // 2, _MIN_INTERVAL_MS)

    @property
    def silence_timeout(self) -> int:
        """Milliseconds without a word after which it is silent."""
        return MISSED_HEARTBEATS * self.interval

    def switch_gateway(self, connected: Container[int], now: int) -> bool:
        """Its gateway has gone: whether another one that is there hears it."""
        if self.previous_gateway not in connected or now - self.previous_heard_at >= self.silence_timeout:
            return False
        self.gateway, self.previous_gateway = self.previous_gateway, 0
        return True


# When devices are to be looked at: a wheel of slots, each some seconds long.

_SLOT_MS: Final = 5_000
"""Milliseconds that lie in one slot."""


class TimerWheel:
    """Knows who is due. A device that was put somewhere else since is passed over."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def schedule(self, device: int, last_seen: LastSeen, at: int) -> None:
        """Look at a device soon after that moment."""
        last_seen.due_slot = at // _SLOT_MS + 1
        self.slots.setdefault(last_seen.due_slot, []).append(device)

    def pop_due(self, by_device: dict[int, LastSeen], now: int) -> Iterator[tuple[int, LastSeen]]:
        """Take out those who are due and connected."""
        for slot in sorted(slot for slot in self.slots if slot * _SLOT_MS <= now):
            devices = self.slots[slot]
            while devices:  # who takes some leaves the others
                device = devices.pop()
                rhythm = by_device.get(device)
                if rhythm is not None and rhythm.connected and rhythm.due_slot == slot:
                    yield device, rhythm
            del self.slots[slot]

    def clear(self) -> None:
        """Take out everybody."""
        self.slots.clear()


class LastSeenIndex:
    """Devices with their rhythms, and by the gateways through which they were last heard."""

    def __init__(self) -> None:
        self.devices: dict[int, LastSeen] = {}
        self._behind: dict[int, set[int]] = {}

    def devices_behind(self, gateway: int) -> list[int]:
        """The devices that were last heard through a gateway."""
        return list(self._behind.get(gateway, ()))

    def add(self, device: int, gateway: int, now: int) -> LastSeen:
        """A device is new."""
        rhythm = self.devices[device] = LastSeen(now, gateway, connected=False)
        self._behind.setdefault(gateway, set()).add(device)
        return rhythm

    def mark_heard(self, device: int, gateway: int, now: int) -> None:
        """A device is heard through a gateway, perhaps through another than before."""
        rhythm = self.devices[device]
        self._move(device, rhythm.gateway, gateway)
        rhythm.mark_heard(gateway, now)

    def switch_gateway(self, device: int, connected: dict[int, int], now: int) -> bool:
        """The gateway of a device has gone: whether another one that is there hears it."""
        rhythm = self.devices[device]
        before = rhythm.gateway
        if not rhythm.switch_gateway(connected, now):
            return False
        self._move(device, before, rhythm.gateway)
        return True

    def remove(self, device: int) -> None:
        """Nobody knows a device any more."""
        rhythm = self.devices.pop(device, None)
        if rhythm is not None:
            self._detach(device, rhythm.gateway)

    def clock_source(self, device: int, gateway: int) -> int:
        """Who tells the time of a gateway, if others could as well."""
        behind = self._behind.get(gateway, set())
        others = len(behind) - (device in behind) - (gateway in behind)
        return device if others and device != gateway else 0

    def _move(self, device: int, before: int, after: int) -> None:
        if before != after:
            self._detach(device, before)
            self._behind.setdefault(after, set()).add(device)

    def _detach(self, device: int, gateway: int) -> None:
        behind = self._behind[gateway]
        behind.discard(device)
        if not behind:
            del self._behind[gateway]
