"""A fleet to look at: the buildings of `serve --demo`, and how they get into a registry."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec.structs import replace
from sqlalchemy import select

from meshfleet.db.tables import device
from meshfleet.emulator import ReportMode, generate_site
from meshfleet.emulator.simulation.products import GATEWAY_PRODUCT, NodeRole
from meshfleet.errors import AlreadyExists, NotFound
from meshfleet.protocol.api_versions import LATEST_VERSION
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service import clock
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.firmware import store
from meshfleet.service.firmware.image_store import open_image_store
from meshfleet.service.firmware.partial_images import PARTIAL_PREFIX, ReceivedImage
from meshfleet.service.firmware.upload_form import NewFirmware
from meshfleet.service.gateways import store as gateways

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.emulator import Site
    from meshfleet.emulator.simulation.site import SiteDevice
    from meshfleet.service.firmware.image_store import ImageStore


# Firmware for the demo: something to update its devices with.


class _FirmwareSpec(NamedTuple):
    model: str
    version: str
    notes: str
    is_released: bool = True


_FIRMWARE: Final = (
    _FirmwareSpec("0005", "3.2.0", "Steadier pressure readings."),
    _FirmwareSpec("000F", "2.1.0", "Longer battery life. Updated by Nordic DFU."),
    _FirmwareSpec("0018", "3.1.0", "Sees motion sooner. Can be broadcast."),
    _FirmwareSpec("0018", "4.0.0-beta.1", "For those who are curious.", is_released=False),
    _FirmwareSpec("0043", "4.3.0", "Extenders hear further."),
)

_IMAGE_BYTES: Final = 60_000
"""Bytes of an image: some twenty seconds in the time of the demo."""


def insert_demo_firmware(database: Database, data: Path) -> None:
    """Offer firmware for devices of the demo; what was offered before stays as it is."""
    images = open_image_store(database, data)
    images.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for offer in _FIRMWARE:
        image = _write_image(images.folder, offer)
        try:
            database.write_now(_insert_firmware, offer, image, images, clock.now())
        except AlreadyExists:
            continue
        finally:
            image.path.unlink(missing_ok=True)


def _insert_firmware(
    connection: Connection, spec: _FirmwareSpec, image: ReceivedImage, images: ImageStore, now: int
) -> None:
    """Both at once: no later start could tell what it did not come to from what is meant to be a draft."""
    made = store.insert_firmware(
        connection, _build_record(spec), image, images=images, by=COMMAND_LINE, now=now
    )
    if spec.is_released:
        store.release_firmware(connection, made.id, by=COMMAND_LINE, now=now)


def _build_record(spec: _FirmwareSpec) -> NewFirmware:
    return NewFirmware(
        model=ModelNumber(spec.model),
        version=Version.parse(spec.version),
        type=FirmwareType.NORDIC_PACKAGE,
        file_name=f"{spec.model}-{spec.version}.zip",
        hardware=(),
        min_version=None,
        notes=spec.notes,
    )


def _write_image(folder: Path, spec: _FirmwareSpec) -> ReceivedImage:
    """A package whose content means nothing, the same one at every start."""
    seed = hashlib.sha512(f"{spec.model} {spec.version}".encode()).digest()
    binary = (seed * (_IMAGE_BYTES // len(seed) + 1))[:_IMAGE_BYTES]
    package = build_package(binary, model_number=ModelNumber(spec.model), version=Version.parse(spec.version))
    place = folder / f"{PARTIAL_PREFIX}{spec.model}-{spec.version}"
    place.write_bytes(package)
    return ReceivedImage(place, len(package), hashlib.sha256(package).digest())


class DemoHistory(Protocol):
    """What the devices of the demo have lived through."""

    until: int

    def write(self, connection: Connection) -> None:
        """Write it down, now that they are known."""


class Building(NamedTuple):
    """A gateway and how many devices it has."""

    gateway: Mac
    name: str
    devices: int
    second_device_name: str
    """What somebody called the second device."""
    mode: ReportMode = ReportMode.RAW
    api_version: Version = LATEST_VERSION


BUILDINGS: Final = (
    Building(Mac("02005e000001"), "Head office", 24, "Meeting room “Ada”"),
    Building(Mac("02005e000002"), "Lager 2 / Rampe", 16, "Kühlraum Süd", mode=ReportMode.DECODED),
    Building(Mac("02005e000003"), "東京オフィス", 20, "会議室 3", api_version=Version(2, 1, 0)),
)

_UNCONNECTED_GATEWAY: Final = (Mac("02005e000004"), "Neubau (ab März)")
"""A gateway that is claimed, and was never heard."""

_EMPTY_BATTERY_EVERY: Final = 7
"""Each of so many devices has an empty battery, if nobody depends on it."""

DAY_MS: Final = 24 * 60 * 60 * 1000
"""Milliseconds since the devices were put up."""


@cache
def build_site(building: Building) -> Site:
    """What stands in a building: the same at every start."""
    site = generate_site(building.gateway, devices=building.devices, seed=1)
    devices = (_drain_battery(number, each) for number, each in enumerate(site.devices, start=1))
    return replace(site, devices=tuple(devices))


def _drain_battery(number: int, fixture: SiteDevice) -> SiteDevice:
    is_spare = fixture.product.has_battery and fixture.product.role is NodeRole.LEAF
    return replace(fixture, battery=0) if is_spare and number % _EMPTY_BATTERY_EVERY == 0 else fixture


def is_registry_empty(database: Database) -> bool:
    """Whether a registry has no devices, so that the demo may fill it."""
    return database.read_now(_is_empty)


def _is_empty(connection: Connection) -> bool:
    return connection.execute(select(device.c.id).limit(1)).first() is None


def fill_registry(database: Database, *, static: bool, history: DemoHistory | None = None) -> dict[Mac, str]:
    """Put the buildings into a registry that is empty; gives their gateways passwords that hold from now on.

    In one that is not empty only gateways of the demo that are claimed get one. A fleet that stands still
    gets none, and looks as it would if it lived. A past comes with the fleet, in one transaction: who dies
    halfway leaves an empty registry, and the next start begins anew.
    """
    now = clock.now() if history is None else history.until
    return database.write_now(_fill_registry, now, static=static, history=history)


def _fill_registry(
    connection: Connection, now: int, *, static: bool, history: DemoHistory | None
) -> dict[Mac, str]:
    if _is_empty(connection):
        made = {each.gateway: _insert_building(connection, each, now, static=static) for each in BUILDINGS}
        mac, name = _UNCONNECTED_GATEWAY
        gateways.claim_gateway(connection, mac, name=name, by=COMMAND_LINE, now=now)
        registry.attach_labels(connection, [("gateways", mac)], at=now)
        if history is not None:
            history.write(connection)
        return {} if static else made
    return {} if static else _rotate_passwords(connection, now)


def _rotate_passwords(connection: Connection, now: int) -> dict[Mac, str]:
    """New passwords: the old ones were told once, to another process."""
    made = {}
    for each in BUILDINGS:
        with suppress(NotFound):  # somebody has released it, or never had a demo here
            made[each.gateway] = gateways.rotate_password(connection, each.gateway, by=COMMAND_LINE, now=now)
    return made


def _insert_building(connection: Connection, building: Building, now: int, *, static: bool) -> str:
    site = build_site(building)
    registry.record_observations(connection, list(_sightings(site, now - DAY_MS, connected=static)))
    registry.attach_labels(connection, list(_labels(site, building)), at=now)
    registry.set_device_names(connection, [(site.devices[1].mac, building.second_device_name)])
    return gateways.claim_gateway(connection, building.gateway, name=building.name, by=COMMAND_LINE, now=now)


def _sightings(site: Site, at: int, *, connected: bool) -> Iterator[DeviceObservation]:
    """What is known of devices from the time when they were put up."""
    yield DeviceObservation(
        device=site.gateway,
        at=at,
        gateway=site.gateway,
        model=GATEWAY_PRODUCT.model,
        firmware=GATEWAY_PRODUCT.firmware,
        hardware=_format_hardware(GATEWAY_PRODUCT.hardware),
        connected=connected,
        status=0,
    )
    for fixture in site.devices:
        yield _sighting(site, fixture, at, connected=connected and fixture.battery > 0)


def _sighting(site: Site, fixture: SiteDevice, at: int, *, connected: bool) -> DeviceObservation:
    product = fixture.product
    distance = abs(fixture.position.x) + abs(fixture.position.y) + 4 * abs(fixture.position.floor)
    return DeviceObservation(
        device=fixture.mac,
        at=at,
        gateway=site.gateway,
        parent=site.gateway,
        rssi=max(-95, -50 - round(distance)),
        model=product.model,
        variant=product.variant,
        firmware=product.firmware,
        hardware=_format_hardware(product.hardware),
        battery=fixture.battery,
        connected=connected,
        status=0 if fixture.battery else 1,
    )


def _labels(site: Site, building: Building) -> Iterator[tuple[str, Mac]]:
    yield "gateways", site.gateway
    for fixture in site.devices:
        yield building.name, fixture.mac
        yield f"floor {fixture.position.floor}", fixture.mac
        if fixture.product.role is NodeRole.EXTENDER:
            yield "extenders", fixture.mac


def _format_hardware(version: tuple[int, int]) -> Version:
    return Version.parse(f"{version[0]}.{version[1]}")
