"""Firmware updates of the devices of one emulated gateway: download, broadcast and Nordic DFU."""

from meshfleet.emulator.updates.update_state import Error
from meshfleet.emulator.updates.updater import FirmwareUpdater

__all__ = ["Error", "FirmwareUpdater"]
