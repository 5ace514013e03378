"""Parses path and query parameters that name or filter devices and gateways (rest-34 to rest-37)."""

from __future__ import annotations

from typing import Annotated, Final

from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedId, MalformedMac
from meshfleet.protocol.ids import (
    EVERY_GATEWAY,
    Mac,
    Version,
    parse_device_id,
    parse_mac,
    parse_model_number,
    to_mac,
)
from meshfleet.rest.inputs import parse_label, parse_name_part
from meshfleet.service.devices.model import DeviceFilter, DeviceSort, SortOrder
from meshfleet.service.http.query import QueryReader, parse_flag
from meshfleet.service.http.request import decode_segment

# Devices and gateways in paths.


def parse_path_device(text: str) -> Mac:
    """Parse the device id in a URL path. Raise `NotFound` if the id is malformed (rest-15)."""
    try:
        return to_mac(parse_device_id(decode_segment(text)))
    except MalformedId:
        raise NotFound("device not found") from None


def parse_path_gateway(text: str) -> Mac:
    """Parse the MAC or device id of a gateway in a URL path. Raise `NotFound` if malformed (rest-76)."""
    try:
        return parse_gateway_mac(decode_segment(text))
    except MalformedId:
        raise NotFound("gateway not found") from None


def parse_gateway_mac(text: str, field: str = "mac") -> Mac:
    """Parse the MAC or device id of a gateway, in upper or lower case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def parse_new_gateway_mac(text: str, field: str = "mac") -> Mac:
    """Parse the MAC or device id of a gateway to claim. Refuse the address of all gateways."""
    mac = parse_gateway_mac(text, field)
    if mac == EVERY_GATEWAY:
        raise MalformedMac(field, f"{mac} is reserved for all gateways")
    return mac


_MAX_LABELS: Final = 20
"""Maximum number of labels in a device filter. Each label adds a condition to the SQL query."""

_SORT_ORDERS: Final = {
    sign + sort: SortOrder(sort, reverse=bool(sign)) for sort in DeviceSort for sign in ("", "-")
}

ConnectedParameter = Annotated[
    str | None,
    QueryParameter(
        name="Connected",
        description="`true`: only connected devices; `false`: only disconnected devices.",
        schema_extra={"type": "boolean"},
    ),
]
SortParameter = Annotated[
    str | None,
    QueryParameter(
        name="Sort",
        description="Sort criterion of the devices, by default `id`. A leading `-` reverses the order.",
        schema_extra={"type": "string", "enum": list(_SORT_ORDERS)},
    ),
]
IncludeParameter = Annotated[
    str | None,
    QueryParameter(
        name="Include",
        description="`live`: add the fields of devices that change with every report, such as RSSI.",
        schema_extra={"type": "string", "enum": ["live"]},
    ),
]


def parse_device_filter(
    label: Annotated[
        list[str] | None,
        QueryParameter(
            name="Label",
            description="Only devices with this label. Can be repeated: only devices with all these labels.",
        ),
    ] = None,
    connected: ConnectedParameter = None,
    model_number: Annotated[
        str | None,
        QueryParameter(name="ModelNumber", description="Model number: four hex digits, such as `000F`."),
    ] = None,
    firmware_version: Annotated[
        str | None,
        QueryParameter(
            name="FirmwareVersion",
            description="Firmware version, such as `2.4.1` (includes its betas) or `2.4.1-beta.3`.",
        ),
    ] = None,
    hardware_version: Annotated[
        str | None,
        QueryParameter(name="HardwareVersion", description="Hardware version, such as `1.0` or `1.0.0`."),
    ] = None,
    friendly_name: Annotated[
        str | None,
        QueryParameter(
            name="FriendlyName",
            description="Part of the device name, in any case. One or two characters match its beginning.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        QueryParameter(
            name="Gateway", description="MAC or device id of the gateway that the device is behind."
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(
            name="Ids", description="Device id to include. Can be repeated to include several devices."
        ),
    ] = None,
) -> DeviceFilter:
    """Parse the filter parameters of a device list. Raise `InvalidRequest` with all faults."""
    reader = QueryReader()
    labels = [reader.read(parse_label, each, "Label", default=None) for each in label or ()]
    device_ids = [reader.read(parse_device_id, each, "Ids", default=None) for each in ids or ()]
    device_filter = DeviceFilter(
        labels=tuple(sorted({each for each in labels if each is not None})),
        connected=reader.read(parse_flag, connected, "Connected", default=None),
        model=reader.read(parse_model_number, model_number, "ModelNumber", default=None),
        firmware=reader.read(Version.parse, firmware_version, "FirmwareVersion", default=None),
        hardware=reader.read(Version.parse, hardware_version, "HardwareVersion", default=None),
        name=reader.read(parse_name_part, friendly_name, "FriendlyName", default=None),
        gateway=reader.read(parse_gateway_mac, gateway, "Gateway", default=None),
        ids=None if ids is None else tuple(sorted({to_mac(each) for each in device_ids if each is not None})),
    )
    if len(device_filter.labels) > _MAX_LABELS:
        reader.faults.append(Fault("Label", f"must be given at most {_MAX_LABELS} times"))
    reader.raise_faults()
    return device_filter


def parse_sort_order(sort: SortParameter = None) -> SortOrder:
    """Parse the sort order of a device list. Raise `InvalidRequest` if the sort order is unknown."""
    if sort is None:
        return SortOrder()
    if sort not in _SORT_ORDERS:
        raise InvalidRequest([Fault("Sort", f"must be one of {', '.join(_SORT_ORDERS)}")])
    return _SORT_ORDERS[sort]


def parse_include_live(include: IncludeParameter = None) -> bool:
    """Return whether the parameter `Include` requests live fields (rest-38).

    Raise `InvalidRequest` if the parameter has another value than `live`.
    """
    if include not in {None, "live"}:
        raise InvalidRequest([Fault("Include", "must be live")])
    return include is not None
