"""Firmware updates of the devices of one gateway, in three ways.

updates     starts them, one of a kind where there can be only one, and hands images to those that wait
download    a device gets its image through the mesh
broadcast   many devices get one image at once
nordic      the gateway sends an image to a device in DFU mode
transfer    bytes over the air, at the pace of the radio
progress    what 8120, 8125 and 8130 say
mishaps     updates that fail on request
"""

from meshfleet.gateway.updates.progress import Error
from meshfleet.gateway.updates.updates import Updates

__all__ = ["Error", "Updates"]
