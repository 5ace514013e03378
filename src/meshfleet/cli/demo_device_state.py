"""What the devices of the demo remember from one start of it to the next.

Their counters go on, so that a service that was stopped for a while misses nothing of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.emulator import GatewayEmulator
from meshfleet.errors.emulator import UnreadableMemory

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.emulator import EmulatorSettings, SimulatedClock, Site
    from meshfleet.protocol.ids import Mac

_log = logging.getLogger(__name__)

_SAVE_SECONDS: Final = 10.0
"""Seconds: what a killed process may lose."""


class DeviceStateStore:
    """A folder with a file for each gateway."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateways: list[GatewayEmulator] = []

    def restore_gateway(
        self, settings: EmulatorSettings, site: Site, clock: SimulatedClock
    ) -> GatewayEmulator:
        """Make a gateway whose devices remember what they can; what cannot be read is forgotten."""
        gateway = self._load_gateway(settings, site, clock) or GatewayEmulator(settings, site, clock)
        self._gateways.append(gateway)
        return gateway

    def _load_gateway(
        self, settings: EmulatorSettings, site: Site, clock: SimulatedClock
    ) -> GatewayEmulator | None:
        file = self._file(settings.mac)
        try:
            return GatewayEmulator(settings, site, clock, memory=file.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, UnreadableMemory) as exc:
            _log.warning("%s cannot be used, the devices of the demo begin anew: %s", file, exc)
        return None

    async def run(self) -> None:
        """Write it down from time to time."""
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            self.save_all()

    def save_all(self) -> None:
        """Write down what all devices remember, each file whole or not at all."""
        for each in self._gateways:
            self.save(each.settings.mac, each.save_memory())

    def save(self, gateway: Mac, state: bytes) -> None:
        """Write down what the devices of a gateway remember."""
        file = self._file(gateway)
        fresh = file.with_suffix(".new")
        try:
            self._folder.mkdir(0o700, exist_ok=True)
            fresh.write_bytes(state)
            fresh.replace(file)
        except OSError as exc:
            _log.warning("what the devices of the demo remember cannot be kept: %s", exc)

    def _file(self, mac: Mac) -> Path:
        return self._folder / f"{mac}.json"
