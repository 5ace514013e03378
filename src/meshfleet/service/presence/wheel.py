"""When devices are to be looked at: a wheel of slots, each some seconds long.

What is heard moves nothing here: a device lies where it is until its slot is due, and is then put elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.presence.rhythm import Rhythm

_SLOT: Final = 5_000
"""Milliseconds that lie in one slot."""


class Wheel:
    """Knows who is due. A device that was put somewhere else since is passed over."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def put(self, device: int, rhythm: Rhythm, at: int) -> None:
        """Look at a device soon after that moment."""
        rhythm.due = at // _SLOT + 1
        self.slots.setdefault(rhythm.due, []).append(device)

    def due(self, rhythms: dict[int, Rhythm], now: int) -> Iterator[tuple[int, Rhythm]]:
        """Take out those who are due and connected."""
        for slot in sorted(slot for slot in self.slots if slot * _SLOT <= now):
            devices = self.slots[slot]
            while devices:  # who takes some leaves the others
                device = devices.pop()
                rhythm = rhythms.get(device)
                if rhythm is not None and rhythm.connected and rhythm.due == slot:
                    yield device, rhythm
            del self.slots[slot]

    def clear(self) -> None:
        """Take out everybody."""
        self.slots.clear()
