"""Polls the embedded MQTT broker for connected gateways (rest-77)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.ids import Mac, mac_to_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.presence.tracker import PresenceTracker
    from meshfleet.service.transport import Transport

_POLL_SECONDS: Final = 1.0
"""Seconds between two polls for connected gateways."""


async def poll_gateways(
    transport: Transport,
    tracker: PresenceTracker,
    on_connect: Callable[[int], None],
    *,
    pause: float = _POLL_SECONDS,
) -> None:
    """Tell the tracker every `pause` seconds which gateways are connected, until canceled.

    Call `on_connect` with each gateway that has connected since the last poll. A gateway that reconnects
    between two polls is detected by its connection number, which differs for every connection. With an
    external broker, return at once, because connections are unknown.
    """
    previous: dict[int, int] = {}
    while (connected := transport.connected_gateways()) is not None:
        current = {mac_to_int(Mac(mac)): number for mac, number in connected.items()}
        for gateway, number in current.items():
            if previous.get(gateway) != number:
                on_connect(gateway)
        tracker.set_connected_gateways(current)
        previous = current
        await asyncio.sleep(pause)
