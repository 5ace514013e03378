"""Which gateways are connected to the broker in our own process, looked at every second (rest-77)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.wire.ids import Mac, mac_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.service.presence.presence import Presence

_PAUSE: Final = 1.0
"""Seconds between two looks."""


async def call_roll(
    carrier: Carrier, presence: Presence, came: Callable[[int], None], *, pause: float = _PAUSE
) -> None:
    """Tell who is there until cancelled, and who has come since the last time, perhaps once more."""
    before: dict[int, int] = {}
    while (connected := carrier.gateways()) is not None:
        present = {mac_number(Mac(mac)): number for mac, number in connected.items()}
        for gateway, number in present.items():
            if before.get(gateway) != number:
                came(gateway)
        presence.arrive(present)
        before = present
        await asyncio.sleep(pause)
