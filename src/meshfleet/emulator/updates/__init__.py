"""Firmware updates of the devices of one gateway, in three ways.

updates     starts them, one of a kind where there can be only one, and hands images to those that wait
download    a device gets its image through the mesh
broadcast   many devices get one image at once
nordic      the gateway sends an image to a device in DFU mode
transfer    bytes over the air, at the pace of the radio
progress    what 8120, 8125 and 8130 say
mishaps     updates that fail on request
"""

from meshfleet.emulator.updates.update_state import Error
from meshfleet.emulator.updates.updater import FirmwareUpdater

__all__ = ["Error", "FirmwareUpdater"]
