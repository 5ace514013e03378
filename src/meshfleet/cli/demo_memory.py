"""What the devices of the demo remember from one start of it to the next.

Their counters go on, so that a service that was stopped for a while misses nothing of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.errors import UnreadableMemory
from meshfleet.gateway import Gateway

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.gateway import Clock, Settings, Site
    from meshfleet.wire.ids import Mac

_log = logging.getLogger(__name__)

_KEPT_EVERY: Final = 10.0
"""Seconds: what a killed process may lose."""


class Memory:
    """A folder with a file for each gateway."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._awake: list[Gateway] = []

    def wake(self, settings: Settings, site: Site, clock: Clock) -> Gateway:
        """Make a gateway whose devices remember what they can; what cannot be read is forgotten."""
        gateway = self._remembering(settings, site, clock) or Gateway(settings, site, clock)
        self._awake.append(gateway)
        return gateway

    def _remembering(self, settings: Settings, site: Site, clock: Clock) -> Gateway | None:
        file = self._file(settings.mac)
        try:
            return Gateway(settings, site, clock, memory=file.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, UnreadableMemory) as exc:
            _log.warning("%s cannot be used, the devices of the demo begin anew: %s", file, exc)
        return None

    async def keep_up(self) -> None:
        """Write it down from time to time."""
        while True:
            await asyncio.sleep(_KEPT_EVERY)
            self.keep()

    def keep(self) -> None:
        """Write down what all devices remember, each file whole or not at all."""
        for each in self._awake:
            self.put(each.settings.mac, each.memory())

    def put(self, gateway: Mac, memory: bytes) -> None:
        """Write down what the devices of a gateway remember."""
        file = self._file(gateway)
        fresh = file.with_suffix(".new")
        try:
            self._folder.mkdir(0o700, exist_ok=True)
            fresh.write_bytes(memory)
            fresh.replace(file)
        except OSError as exc:
            _log.warning("what the devices of the demo remember cannot be kept: %s", exc)

    def _file(self, mac: Mac) -> Path:
        return self._folder / f"{mac}.json"
