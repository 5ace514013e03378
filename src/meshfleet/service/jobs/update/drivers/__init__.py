"""The ways of updating, each with nothing but messaging requests and reports (firmware-31).

driver      what each of them can do
download    the device gets the image for itself
broadcast   the gateway sends it to many devices at once
nordic      the gateway sends it to a device in DFU mode
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.service.jobs.update.drivers.broadcast import Broadcast
from meshfleet.service.jobs.update.drivers.download import Download
from meshfleet.service.jobs.update.drivers.nordic import Nordic
from meshfleet.wire.products import Way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.update.drivers.driver import Driver

DRIVERS: Final[Mapping[Way, Driver]] = {
    Way.DOWNLOAD: Download(),
    Way.BROADCAST: Broadcast(),
    Way.NORDIC_DFU: Nordic(),
}

__all__ = ["DRIVERS"]
