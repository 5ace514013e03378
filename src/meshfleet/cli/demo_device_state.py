"""Saves the state of the demo's devices and restores it at the next start of the demo.

The `seq` counters of the devices therefore continue, and the service detects no gaps in the samples.
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
"""Seconds between two saves of the device state. A killed process loses the changes since the last save."""


class DeviceStateStore:
    """Saves and restores the state of the demo's devices, in a directory with one file per gateway."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateways: list[GatewayEmulator] = []

    def restore_gateway(
        self, settings: EmulatorSettings, site: Site, clock: SimulatedClock
    ) -> GatewayEmulator:
        """Create a gateway whose devices have their saved state, or a new state if it cannot be read."""
        gateway = self._load_gateway(settings, site, clock) or GatewayEmulator(settings, site, clock)
        self._gateways.append(gateway)
        return gateway

    def _load_gateway(
        self, settings: EmulatorSettings, site: Site, clock: SimulatedClock
    ) -> GatewayEmulator | None:
        file = self._state_path(settings.mac)
        try:
            return GatewayEmulator(settings, site, clock, memory=file.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, UnreadableMemory) as exc:
            _log.warning("%s cannot be used, the devices of the demo start with a new state: %s", file, exc)
        return None

    async def save_periodically(self) -> None:
        """Save the state of all devices periodically, until canceled."""
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            self.save_all()

    def save_all(self) -> None:
        """Save the state of all devices to one file per gateway. Replace each file atomically."""
        for each in self._gateways:
            self.save(each.settings.mac, each.save_memory())

    def save(self, gateway: Mac, state: bytes) -> None:
        """Save the device state of one gateway. Log a warning if the file cannot be written."""
        file = self._state_path(gateway)
        temporary = file.with_suffix(".new")
        try:
            self._folder.mkdir(0o700, exist_ok=True)
            temporary.write_bytes(state)
            temporary.replace(file)
        except OSError as exc:
            _log.warning("the state of the demo's devices cannot be saved: %s", exc)

    def _state_path(self, gateway: Mac) -> Path:
        return self._folder / f"{gateway}.json"
