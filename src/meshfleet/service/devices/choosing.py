"""The filters of the list of devices, as they stand in a query (rest-34 to rest-37)."""

from typing import Annotated, Final

from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest
from meshfleet.service.devices.model import Filter, Order, Sort
from meshfleet.service.devices.paths import parse_gateway
from meshfleet.service.http.query_reader import QueryReader, parse_flag
from meshfleet.wire.ids import Version, mac_of, parse_device_id, parse_model_number
from meshfleet.wire.rest import parse_label, parse_name_part

_LABELS: Final = 20
"""Each label of a filter is another question to the database."""

_SORTS: Final = {sign + sort: Order(sort, reverse=bool(sign)) for sort in Sort for sign in ("", "-")}

Connected = Annotated[
    str | None,
    QueryParameter(
        name="Connected",
        description="Is connected, or is not.",
        schema_extra={"type": "boolean"},
    ),
]
SortText = Annotated[
    str | None,
    QueryParameter(
        name="Sort",
        description="What decides the order, `id` unless set; a `-` in front reverses it.",
        schema_extra={"type": "string", "enum": list(_SORTS)},
    ),
]
Include = Annotated[
    str | None,
    QueryParameter(
        name="Include",
        description="`live` adds what changes with reports.",
        schema_extra={"type": "string", "enum": ["live"]},
    ),
]


def choose(
    label: Annotated[
        list[str] | None,
        QueryParameter(
            name="Label", description="Has this label; may be given several times, then has them all."
        ),
    ] = None,
    connected: Connected = None,
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
) -> Filter:
    """Read the filters, or tell all that is wrong with them."""
    reader = QueryReader()
    labels = [reader.read(parse_label, each, "Label", unless=None) for each in label or ()]
    known = [reader.read(parse_device_id, each, "Ids", unless=None) for each in ids or ()]
    chosen = Filter(
        labels=tuple(sorted({each for each in labels if each is not None})),
        connected=reader.read(parse_flag, connected, "Connected", unless=None),
        model=reader.read(parse_model_number, model_number, "ModelNumber", unless=None),
        firmware=reader.read(Version.parse, firmware_version, "FirmwareVersion", unless=None),
        hardware=reader.read(Version.parse, hardware_version, "HardwareVersion", unless=None),
        name=reader.read(parse_name_part, friendly_name, "FriendlyName", unless=None),
        gateway=reader.read(parse_gateway, gateway, "Gateway", unless=None),
        ids=None if ids is None else tuple(sorted({mac_of(each) for each in known if each is not None})),
    )
    if len(chosen.labels) > _LABELS:
        reader.faults.append(Fault("Label", f"is given more than {_LABELS} times"))
    reader.end()
    return chosen


def read_order(sort: SortText = None) -> Order:
    """Read how to sort."""
    if sort is None:
        return Order()
    if sort not in _SORTS:
        raise InvalidRequest([Fault("Sort", f"is none of {', '.join(_SORTS)}")])
    return _SORTS[sort]


def read_live(include: Include = None) -> bool:
    """Read whether what changes with reports is asked for (rest-38)."""
    if include not in {None, "live"}:
        raise InvalidRequest([Fault("Include", "can only be live")])
    return include is not None
