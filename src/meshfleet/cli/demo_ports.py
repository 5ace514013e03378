"""Ports of the demo: on a machine where the usual ones are taken it uses the next that are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.service.sockets import next_free

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from meshfleet.settings import Settings

_SPOKEN: Final = {"http": "HTTP", "mqtt": "MQTT"}


def move_to_free_ports(settings: Settings, chosen: Collection[str], say: Callable[[str], None]) -> Settings:
    """Replace default ports that are in use by the next free ones, and say so.

    `chosen` are the names of the settings that were given: those stay, and a port among them that is in use
    is an error later. A mosquitto that was just installed on Debian listens on 1883.
    """
    for name, spoken in _SPOKEN.items():
        place = getattr(settings, name)
        if place is None or name in chosen:
            continue
        free = next_free(place)
        if free != place:
            taken = f"Port {place.port} is in use by another program."
            say(f"{taken} The demo uses port {free.port} for {spoken}.")
            settings = replace(settings, **{name: free})
    return settings
