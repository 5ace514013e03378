"""Which gateways are connected to the broker in our own process, looked at every second (rest-77)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.ids import Mac, mac_to_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.presence.tracker import PresenceTracker
    from meshfleet.service.transport import Transport

_POLL_SECONDS: Final = 1.0
"""Seconds between two looks."""


async def poll_gateways(
    transport: Transport,
    tracker: PresenceTracker,
    on_connect: Callable[[int], None],
    *,
    pause: float = _POLL_SECONDS,
) -> None:
    """Tell who is there until cancelled, and who has come since the last time, perhaps once more."""
    before: dict[int, int] = {}
    while (connected := transport.connected_gateways()) is not None:
        present = {mac_to_int(Mac(mac)): number for mac, number in connected.items()}
        for gateway, number in present.items():
            if before.get(gateway) != number:
                on_connect(gateway)
        tracker.set_connected_gateways(present)
        before = present
        await asyncio.sleep(pause)
