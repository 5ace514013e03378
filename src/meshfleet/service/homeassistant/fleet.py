"""Loads the devices that Home Assistant shows from the device registry, and their stored samples."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import func, select

from meshfleet.db import bulk
from meshfleet.db.samples.sample import SampleKind, SampleQuery
from meshfleet.db.tables import device, firmware, gateway
from meshfleet.protocol.ids import (
    Mac,
    ModelNumber,
    Version,
    format_model_number,
    mac_to_int,
    to_mac,
)
from meshfleet.protocol.products import find_product_name
from meshfleet.service.devices import listing
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from meshfleet.service.devices.parameters import parse_device_filter
from meshfleet.service.homeassistant.entities import DeviceDescription
from meshfleet.service.homeassistant.state import DeviceFigures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.samples.sample import SampleRow, SampleStore, StoredSample
    from meshfleet.rest.devices import Device
    from meshfleet.settings.model import HomeAssistantSettings

_HISTORY_SAMPLES: Final = 2000
"""Maximum number of stored samples of a device that are read at a start to find its newest values."""
_FUTURE_MS: Final = 600_000
"""Milliseconds by which the time of a sample may be ahead of the clock of the service."""

_UNKNOWN_VERSION: Final = "0.0.0"
_SELECT_FIRMWARE: Final = "SELECT id, beta, variant FROM device WHERE id IN numbers"


class FleetDevice(NamedTuple):
    """Device that Home Assistant shows, as loaded from the device registry."""

    description: DeviceDescription
    figures: DeviceFigures

    def with_report_rate(self, rate: int) -> FleetDevice:
        """Return a copy of a gateway with this number of reports per minute."""
        return self._replace(figures=replace(self.figures, report_rate=rate))


class Fleet(NamedTuple):
    """Devices that match the setting `homeassistant.devices`."""

    devices: dict[int, FleetDevice]
    """Devices by MAC in integer form. Gateways are first, because other devices refer to their gateways."""
    is_complete: bool
    """False if more devices match than `homeassistant.max-devices`; then `devices` is empty."""


def build_filter(settings: HomeAssistantSettings) -> DeviceFilter:
    """Build a device filter from `homeassistant.devices`, whose values the settings have already checked."""
    labels = [value for name, value in settings.devices if name == "label"]
    given = dict(settings.devices)
    return parse_device_filter(
        label=labels,
        model_number=given.get("model"),
        firmware_version=given.get("firmware"),
        hardware_version=given.get("hardware"),
        friendly_name=given.get("name"),
        gateway=given.get("gateway"),
    )


def load_fleet(connection: Connection, device_filter: DeviceFilter, settings: HomeAssistantSettings) -> Fleet:
    """Load all devices that match a filter, or none if there are more than `homeassistant.max-devices`."""
    page = listing.list_devices(
        connection, device_filter, SortOrder(), after=None, limit=settings.max_devices, live=True
    )
    if page.end is not None:
        return Fleet({}, is_complete=False)
    numbers = [mac_to_int(_get_mac(each)) for each in page.devices]
    versions = {row[0]: row[1:] for row in bulk.query_in(connection, _SELECT_FIRMWARE, numbers)}
    gateways = set(connection.scalars(select(gateway.c.device)))
    released = _load_released_versions(connection)
    counts = _count_devices_by_gateway(connection)
    loaded = {}
    for number, each in zip(numbers, page.devices, strict=True):
        beta, variant = versions.get(number, (0, 0))
        loaded[number] = FleetDevice(
            _describe(each, beta, variant, gateways, settings.area_label_prefix),
            DeviceFigures(
                connected=each.connectivity.connected,
                rssi=None if each.live is UNSET else each.live.rssi,
                latest_firmware=released.get(ModelNumber(each.model_number)),
                device_count=counts.get(number, 0) if number in gateways else None,
            ),
        )
    return Fleet(_sort_gateways_first(loaded), is_complete=True)


def _get_mac(each: Device) -> Mac:
    return to_mac(each.id)  # type: ignore[arg-type] # a device id that the service itself wrote


def _describe(
    each: Device, beta: int, variant: int, gateways: set[int], area_prefix: str
) -> DeviceDescription:
    """Build the description of a device. `beta` is the number in its firmware version, 0 for a release."""
    model, mac = ModelNumber(each.model_number), _get_mac(each)
    areas = [label.removeprefix(area_prefix) for label in each.labels if label.startswith(area_prefix)]
    version = f"{each.firmware_version}-beta.{beta}" if beta else each.firmware_version
    hardware = each.hardware_version
    via = None if each.live is UNSET or each.live.gateway is None else Mac(each.live.gateway)
    return DeviceDescription(
        mac=mac,
        name=each.friendly_name,
        model=model,
        product=find_product_name(model, variant),
        firmware=None if version == _UNKNOWN_VERSION else version,
        # The third part is always 0: devices report only two.
        hardware=None if hardware == _UNKNOWN_VERSION else hardware.removesuffix(".0"),
        area=next(filter(None, areas), None),
        via=via,
        is_gateway=mac_to_int(mac) in gateways,
    )


def _sort_gateways_first(loaded: Mapping[int, FleetDevice]) -> dict[int, FleetDevice]:
    """Sort gateways before other devices, and clear `via` of devices whose gateway is not among `loaded`."""
    known = {each.description.mac for each in loaded.values() if each.description.is_gateway}
    linked = {}
    for number in sorted(loaded, key=lambda each: (not loaded[each].description.is_gateway, each)):
        description, figures = loaded[number]
        if description.is_gateway or description.via not in known:
            description = replace(description, via=None)
        linked[number] = FleetDevice(description, figures)
    return linked


def _load_released_versions(connection: Connection) -> dict[ModelNumber, str]:
    """Load the newest released firmware version of each model."""
    newest: dict[ModelNumber, str] = {}
    rows = connection.execute(
        select(firmware.c.model, firmware.c.version).where(firmware.c.state == "released")
    )
    for number, version in rows:
        model = format_model_number(number)
        newest[model] = max(newest.get(model, version), version, key=Version.parse)
    return newest


def _count_devices_by_gateway(connection: Connection) -> dict[int, int]:
    """Count devices by gateway (MAC in integer form), as the list of gateways does."""
    query = select(device.c.gateway, func.count()).group_by(device.c.gateway)
    return {row[0]: row[1] for row in connection.execute(query)}


async def load_newest_rows(samples: SampleStore, number: int, now: int) -> Sequence[SampleRow]:
    """Load the newest properties and measurements of a device, the newest first.

    `number` is the device's MAC in integer form, and `now` the Unix time in milliseconds.
    """
    query = SampleQuery(
        device=number,
        kinds=frozenset({SampleKind.PROPERTY, SampleKind.MEASUREMENT}),
        since=0,
        until=now + _FUTURE_MS,
        newest_first=True,
    )
    return await samples.read(query, _take_newest)


def _take_newest(found: Iterator[StoredSample]) -> list[SampleRow]:
    """Convert the first `_HISTORY_SAMPLES` samples to rows."""
    return [
        (
            each.time,
            each.kind,
            each.identifier,
            each.seq,
            each.gateway,
            each.number,
            each.raw,
            each.more,
        )
        for each in islice(found, _HISTORY_SAMPLES)
    ]
