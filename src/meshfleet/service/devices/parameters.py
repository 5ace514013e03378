"""The filters of the list of devices, as they stand in a query (rest-34 to rest-37)."""

from __future__ import annotations

from typing import Annotated, Final

from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedId
from meshfleet.protocol.ids import Mac, Version, parse_device_id, parse_mac, parse_model_number, to_mac
from meshfleet.rest import parse_label, parse_name_part
from meshfleet.service.devices.model import DeviceFilter, DeviceSort, SortOrder
from meshfleet.service.http.query import QueryReader, parse_flag
from meshfleet.service.http.request import decode_segment

# Devices and gateways as they are named in paths.


def parse_path_device(text: str) -> Mac:
    """Read the id of a device; there is none with an id that cannot be (rest-15)."""
    try:
        return to_mac(parse_device_id(decode_segment(text)))
    except MalformedId:
        raise NotFound("there is no such device") from None


def parse_path_gateway(text: str) -> Mac:
    """Read the MAC or the device id of a gateway (rest-76)."""
    try:
        return parse_gateway_mac(decode_segment(text))
    except MalformedId:
        raise NotFound("there is no such gateway") from None


def parse_gateway_mac(text: str, field: str = "mac") -> Mac:
    """Read the MAC or the device id of a gateway, in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


_MAX_LABELS: Final = 20
"""Each label of a filter is another question to the database."""

_SORT_ORDERS: Final = {
    sign + sort: SortOrder(sort, reverse=bool(sign)) for sort in DeviceSort for sign in ("", "-")
}

ConnectedParameter = Annotated[
    str | None,
    QueryParameter(
        name="Connected",
        description="Is connected, or is not.",
        schema_extra={"type": "boolean"},
    ),
]
SortParameter = Annotated[
    str | None,
    QueryParameter(
        name="Sort",
        description="What decides the order, `id` unless set; a `-` in front reverses it.",
        schema_extra={"type": "string", "enum": list(_SORT_ORDERS)},
    ),
]
IncludeParameter = Annotated[
    str | None,
    QueryParameter(
        name="Include",
        description="`live` adds what changes with reports.",
        schema_extra={"type": "string", "enum": ["live"]},
    ),
]


def parse_device_filter(
    label: Annotated[
        list[str] | None,
        QueryParameter(
            name="Label", description="Has this label; may be given several times, then has them all."
        ),
    ] = None,
    connected: ConnectedParameter = None,
    model_number: Annotated[
        str | None, QueryParameter(name="ModelNumber", description="Four hex digits, such as `000F`.")
    ] = None,
    firmware_version: Annotated[
        str | None,
        QueryParameter(
            name="FirmwareVersion", description="Such as `2.4.1`, betas included, or `2.4.1-beta.3`."
        ),
    ] = None,
    hardware_version: Annotated[
        str | None, QueryParameter(name="HardwareVersion", description="Such as `1.0` or `1.0.0`.")
    ] = None,
    friendly_name: Annotated[
        str | None,
        QueryParameter(
            name="FriendlyName",
            description="Part of the name, in any case; fewer than three characters: its beginning.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="The MAC or device id of the gateway it is behind."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="Ids", description="Is one of these; may be given several times."),
    ] = None,
) -> DeviceFilter:
    """Read the filters, or tell all that is wrong with them."""
    reader = QueryReader()
    labels = [reader.read(parse_label, each, "Label", unless=None) for each in label or ()]
    known = [reader.read(parse_device_id, each, "Ids", unless=None) for each in ids or ()]
    chosen = DeviceFilter(
        labels=tuple(sorted({each for each in labels if each is not None})),
        connected=reader.read(parse_flag, connected, "Connected", unless=None),
        model=reader.read(parse_model_number, model_number, "ModelNumber", unless=None),
        firmware=reader.read(Version.parse, firmware_version, "FirmwareVersion", unless=None),
        hardware=reader.read(Version.parse, hardware_version, "HardwareVersion", unless=None),
        name=reader.read(parse_name_part, friendly_name, "FriendlyName", unless=None),
        gateway=reader.read(parse_gateway_mac, gateway, "Gateway", unless=None),
        ids=None if ids is None else tuple(sorted({to_mac(each) for each in known if each is not None})),
    )
    if len(chosen.labels) > _MAX_LABELS:
        reader.faults.append(Fault("Label", f"is given more than {_MAX_LABELS} times"))
    reader.raise_faults()
    return chosen


def parse_sort_order(sort: SortParameter = None) -> SortOrder:
    """Read how to sort."""
    if sort is None:
        return SortOrder()
    if sort not in _SORT_ORDERS:
        raise InvalidRequest([Fault("Sort", f"is none of {', '.join(_SORT_ORDERS)}")])
    return _SORT_ORDERS[sort]


def parse_include_live(include: IncludeParameter = None) -> bool:
    """Read whether what changes with reports is asked for (rest-38)."""
    if include not in {None, "live"}:
        raise InvalidRequest([Fault("Include", "can only be live")])
    return include is not None
