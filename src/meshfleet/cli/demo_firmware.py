"""Firmware for the demo: something to update its devices with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import AlreadyExists
from meshfleet.service import clock
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.firmware import store
from meshfleet.service.firmware.arriving import PREFIX, Arrived
from meshfleet.service.firmware.form import NewFirmware
from meshfleet.service.firmware.images import open_images
from meshfleet.wire.diagnostics import FirmwareType
from meshfleet.wire.ids import ModelNumber, Version
from meshfleet.wire.package import pack

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.firmware.images import Images


class _Offer(NamedTuple):
    model: str
    version: str
    notes: str
    is_released: bool = True


_OFFERS: Final = (
    _Offer("0005", "3.2.0", "Steadier pressure readings."),
    _Offer("000F", "2.1.0", "Longer battery life. Updated by Nordic DFU."),
    _Offer("0018", "3.1.0", "Sees motion sooner. Can be broadcast."),
    _Offer("0018", "4.0.0-beta.1", "For those who are curious.", is_released=False),
    _Offer("0043", "4.3.0", "Extenders hear further."),
)

_SIZE: Final = 60_000
"""Bytes of an image: some twenty seconds in the time of the demo."""


def fill_catalogue(database: Database, data: Path) -> None:
    """Offer firmware for devices of the demo; what was offered before stays as it is."""
    images = open_images(database, data)
    images.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for offer in _OFFERS:
        image = _image(images.folder, offer)
        try:
            database.write_now(_offer, offer, image, images, clock.now())
        except AlreadyExists:
            continue
        finally:
            image.place.unlink(missing_ok=True)


def _offer(connection: Connection, offer: _Offer, image: Arrived, images: Images, now: int) -> None:
    """Both at once: no later start could tell what it did not come to from what is meant to be a draft."""
    made = store.add(connection, _record(offer), image, images=images, by=COMMAND_LINE, now=now)
    if offer.is_released:
        store.release(connection, made.id, by=COMMAND_LINE, now=now)


def _record(offer: _Offer) -> NewFirmware:
    return NewFirmware(
        model=ModelNumber(offer.model),
        version=Version.parse(offer.version),
        type=FirmwareType.NORDIC_PACKAGE,
        file_name=f"{offer.model}-{offer.version}.zip",
        hardware=(),
        min_version=None,
        notes=offer.notes,
    )


def _image(folder: Path, offer: _Offer) -> Arrived:
    """A package whose content means nothing, the same one at every start."""
    seed = hashlib.sha512(f"{offer.model} {offer.version}".encode()).digest()
    binary = (seed * (_SIZE // len(seed) + 1))[:_SIZE]
    package = pack(binary, model_number=ModelNumber(offer.model), version=Version.parse(offer.version))
    place = folder / f"{PREFIX}{offer.model}-{offer.version}"
    place.write_bytes(package)
    return Arrived(place, len(package), hashlib.sha256(package).digest())
