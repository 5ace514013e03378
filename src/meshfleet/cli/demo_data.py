"""Buildings and firmware of the demo (`serve --demo`), and functions that insert them into the database."""

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


# --- Firmware ---


class _FirmwareSpec(NamedTuple):
    """Firmware of the demo: model, version, release notes, and whether jobs may use it."""

    model: str
    version: str
    notes: str
    is_released: bool = True


_FIRMWARE: Final = (
    _FirmwareSpec("0005", "3.2.0", "More stable pressure readings."),
    _FirmwareSpec("000F", "2.1.0", "Longer battery life. Updated by Nordic DFU."),
    _FirmwareSpec("0018", "3.1.0", "Detects motion sooner. Can be broadcast."),
    _FirmwareSpec("0018", "4.0.0-beta.1", "Preview of the next major version.", is_released=False),
    _FirmwareSpec("0043", "4.3.0", "Extenders have a longer range."),
)

_IMAGE_BYTES: Final = 60_000
"""Size of a demo firmware image in bytes. At the speed of the demo, a transfer takes about twenty seconds."""


def insert_demo_firmware(database: Database, data: Path) -> None:
    """Insert the firmware of the demo, except firmware that the database already contains."""
    images = open_image_store(database, data)
    images.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for spec in _FIRMWARE:
        image = _write_image(images.folder, spec)
        try:
            database.write_now(_insert_firmware, spec, image, images, clock.now())
        except AlreadyExists:
            continue
        finally:
            image.path.unlink(missing_ok=True)


def _insert_firmware(
    connection: Connection, spec: _FirmwareSpec, image: ReceivedImage, images: ImageStore, now: int
) -> None:
    """Insert a firmware record and release it, both in the transaction of `connection`.

    With two transactions, an interrupted start could leave a draft that no later start would release.
    """
    record = store.insert_firmware(
        connection, _build_record(spec), image, images=images, by=COMMAND_LINE, now=now
    )
    if spec.is_released:
        store.release_firmware(connection, record.id, by=COMMAND_LINE, now=now)


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
    """Write a firmware package with meaningless content, which is identical at every start."""
    seed = hashlib.sha512(f"{spec.model} {spec.version}".encode()).digest()
    binary = (seed * (_IMAGE_BYTES // len(seed) + 1))[:_IMAGE_BYTES]
    package = build_package(binary, model_number=ModelNumber(spec.model), version=Version.parse(spec.version))
    path = folder / f"{PARTIAL_PREFIX}{spec.model}-{spec.version}"
    path.write_bytes(package)
    return ReceivedImage(path, len(package), hashlib.sha256(package).digest())


class DemoHistory(Protocol):
    """Simulated samples and connection changes of the demo's devices in the past."""

    until: int
    """End of the history (Unix time in milliseconds)."""

    def write(self, connection: Connection) -> None:
        """Insert the history into the database, which already contains the devices."""


class Building(NamedTuple):
    """Building of the demo: one gateway with its devices."""

    gateway: Mac
    name: str
    devices: int
    """Number of devices in the building, without the gateway."""
    second_device_name: str
    """Friendly name of the second device."""
    mode: ReportMode = ReportMode.RAW
    api_version: Version = LATEST_VERSION


BUILDINGS: Final = (
    Building(Mac("02005e000001"), "Head office", 24, "Meeting room “Ada”"),
    Building(Mac("02005e000002"), "Lager 2 / Rampe", 16, "Kühlraum Süd", mode=ReportMode.DECODED),
    Building(Mac("02005e000003"), "東京オフィス", 20, "会議室 3", api_version=Version(2, 1, 0)),
)

_UNCONNECTED_GATEWAY: Final = (Mac("02005e000004"), "Neubau (ab März)")
"""MAC and name of a gateway that is claimed but never connects."""

_EMPTY_BATTERY_EVERY: Final = 7
"""Every seventh device gets an empty battery, if the device has a battery and is a leaf of the mesh."""

DAY_MS: Final = 24 * 60 * 60 * 1000
"""One day in milliseconds. The devices of a new demo were first seen one day ago."""


@cache
def build_site(building: Building) -> Site:
    """Generate the devices of a building and their positions, which are identical at every start."""
    site = generate_site(building.gateway, devices=building.devices, seed=1)
    devices = (_drain_battery(number, each) for number, each in enumerate(site.devices, start=1))
    return replace(site, devices=tuple(devices))


def _drain_battery(number: int, device_spec: SiteDevice) -> SiteDevice:
    """Return the device, with an empty battery if its number in the building selects it."""
    can_be_empty = device_spec.product.has_battery and device_spec.product.role is NodeRole.LEAF
    return (
        replace(device_spec, battery=0)
        if can_be_empty and number % _EMPTY_BATTERY_EVERY == 0
        else device_spec
    )


def is_registry_empty(database: Database) -> bool:
    """Return whether the database has no devices, so that the demo may insert its devices."""
    return database.read_now(_has_no_devices)


def _has_no_devices(connection: Connection) -> bool:
    return connection.execute(select(device.c.id).limit(1)).first() is None


def fill_registry(database: Database, *, static: bool, history: DemoHistory | None = None) -> dict[Mac, str]:
    """Insert the demo's buildings if the database has no devices. Return new gateway passwords by MAC.

    If there are devices, only the claimed gateways of the demo get new passwords. In a static demo, the
    gateways do not run: no passwords are returned, and the devices are inserted as connected. Buildings and
    history are inserted in one transaction, so that after an interrupted start the next start inserts them.
    """
    now = clock.now() if history is None else history.until
    return database.write_now(_fill_registry, now, static=static, history=history)


def _fill_registry(
    connection: Connection, now: int, *, static: bool, history: DemoHistory | None
) -> dict[Mac, str]:
    if _has_no_devices(connection):
        passwords = {
            each.gateway: _insert_building(connection, each, now, static=static) for each in BUILDINGS
        }
        mac, name = _UNCONNECTED_GATEWAY
        gateways.claim_gateway(connection, mac, name=name, by=COMMAND_LINE, now=now)
        registry.attach_labels(connection, [("gateways", mac)], at=now)
        if history is not None:
            history.write(connection)
        return {} if static else passwords
    return {} if static else _rotate_passwords(connection, now)


def _rotate_passwords(connection: Connection, now: int) -> dict[Mac, str]:
    """Set new passwords for the demo's claimed gateways. Only an earlier process knew the old passwords."""
    passwords = {}
    for each in BUILDINGS:
        with suppress(NotFound):  # released, or this registry never had a demo
            passwords[each.gateway] = gateways.rotate_password(
                connection, each.gateway, by=COMMAND_LINE, now=now
            )
    return passwords


def _insert_building(connection: Connection, building: Building, now: int, *, static: bool) -> str:
    site = build_site(building)
    registry.record_observations(connection, list(_site_observations(site, now - DAY_MS, connected=static)))
    registry.attach_labels(connection, list(_site_labels(site, building)), at=now)
    registry.set_device_names(connection, [(site.devices[1].mac, building.second_device_name)])
    return gateways.claim_gateway(connection, building.gateway, name=building.name, by=COMMAND_LINE, now=now)


def _site_observations(site: Site, at: int, *, connected: bool) -> Iterator[DeviceObservation]:
    """Yield an observation of the gateway and of each device, made at Unix time `at` in milliseconds."""
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
    for device_spec in site.devices:
        yield _device_observation(site, device_spec, at, connected=connected and device_spec.battery > 0)


def _device_observation(
    site: Site, device_spec: SiteDevice, at: int, *, connected: bool
) -> DeviceObservation:
    product = device_spec.product
    distance = abs(device_spec.position.x) + abs(device_spec.position.y) + 4 * abs(device_spec.position.floor)
    return DeviceObservation(
        device=device_spec.mac,
        at=at,
        gateway=site.gateway,
        parent=site.gateway,
        rssi=max(-95, -50 - round(distance)),
        model=product.model,
        variant=product.variant,
        firmware=product.firmware,
        hardware=_format_hardware(product.hardware),
        battery=device_spec.battery,
        connected=connected,
        status=0 if device_spec.battery else 1,
    )


def _site_labels(site: Site, building: Building) -> Iterator[tuple[str, Mac]]:
    yield "gateways", site.gateway
    for device_spec in site.devices:
        yield building.name, device_spec.mac
        yield f"floor {device_spec.position.floor}", device_spec.mac
        if device_spec.product.role is NodeRole.EXTENDER:
            yield "extenders", device_spec.mac


def _format_hardware(version: tuple[int, int]) -> Version:
    return Version.parse(f"{version[0]}.{version[1]}")
